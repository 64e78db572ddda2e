"""When two messages are the same one, although an agent's SDK has taken the first apart and written it anew.

Text must agree to the last space. What an SDK may change without anybody meaning it is left out of the comparison: the
ids of calls, the spelling of JSON, the parts a text came in, and thoughts that were not sent back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.gateway.exchange import Refused, Said, Tool

Key = tuple[Any, ...]
"""Of a message. Equal where the messages are the same but for their thoughts."""

_LARGEST_EXACT = 2**53


def keys_of(messages: Sequence[Said]) -> tuple[Key, ...]:
    """One for each message. An id is replaced by where in the conversation the call was made."""
    made: dict[str, tuple[int, int]] = {}
    keys: list[Key] = []
    for at, message in enumerate(messages):
        calls = tuple((call.name, arguments_key(call.arguments)) for call in message.calls)
        answers: Any = message.answers
        if message.answers is not None and message.answers in made:
            answers = made[message.answers]
        keys.append((message.speaker, message.text, calls, answers))
        # An id that is used again means the latest call with it.
        made.update({call.call_id: (at, place) for place, call in enumerate(message.calls)})
    return tuple(keys)


def thoughts_agree(sent: Said, recorded: Said) -> bool:
    """Thoughts that an agent dropped were not changed by it."""
    return not sent.reasoning or sent.reasoning == recorded.reasoning


def arguments_key(text: str) -> str:
    """Of a call's arguments: equal for texts that mean the same JSON value, and the text itself where it is none."""
    if not text.strip():
        return "{}"
    try:
        return _written(json.loads(text))
    except (ValueError, RecursionError):
        return f"text:{text}"


def tools_key(tools: Sequence[Tool]) -> str:
    return _written([[tool.name, tool.description, tool.parameters] for tool in tools])


def flattened(content: object, *, field: str) -> str:
    """The text of a message's content, which protocols also take as a list of parts.

    Raises Refused for a part that has no text, such as a picture.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refused(f"{field} is a {type(content).__name__}; send a text, or a list of parts with text")
    texts = []
    for at, part in enumerate(content):
        text = part if isinstance(part, str) else part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise Refused(f"{field}[{at}] is of type {kind!r:.80}, which has no text; send parts of text alone")
        texts.append(text)
    return "".join(texts)


def _written(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    """JavaScript has one kind of number, and writes 1.0 as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < _LARGEST_EXACT:
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value
