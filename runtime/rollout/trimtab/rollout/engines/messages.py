"""Conversations with endpoints that take messages and answer with text: how the one token for each character that a
conversation holds becomes messages again.

Nothing of it is trained, so its tokens need not be those of any model. What belongs to whom must survive, though: the
end of a message and the speaker of the next are characters that no text has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.rollout.engines.contract import FIXED_VERSION, Generated
from trimtab.rollout.tokenizer import ChatTemplateError, Message, Tokenizer

_END = "\U0010fff0"
_SPEAKERS = {"system": "\U0010fff1", "user": "\U0010fff2", "assistant": "\U0010fff3"}
_ROLES = {mark: role for role, mark in _SPEAKERS.items()}
_MARKS = re.compile("[\U0010fff0-\U0010fff3]")
_SPOKEN = re.compile("([\U0010fff1-\U0010fff3])([^\U0010fff0-\U0010fff3]*)")


def _rendered(messages: Sequence[Message], arguments: Mapping[str, Any]) -> str:
    said = []
    for message in messages:
        role, content = message.get("role"), message.get("content")
        if role not in _SPEAKERS or not isinstance(content, str):
            raise ChatTemplateError(
                f"a message of role {role!r} with content of type {type(content).__name__}: an endpoint takes text of "
                f"{', '.join(_SPEAKERS)}"
            )
        said.append(f"{_SPEAKERS[role]}{_MARKS.sub('', content)}{_END}")
    return "".join(said) + _SPEAKERS["assistant"]


MESSAGES = Tokenizer(
    encode=lambda text: [ord(character) for character in text],
    decode=lambda token_ids: _MARKS.sub("", "".join(map(chr, token_ids))),
    render=_rendered,
)
"""A token for every character, and a chat template that loses nothing."""


def messages_of(token_ids: Sequence[int]) -> list[dict[str, str]]:
    """What a conversation has come to. Text without speakers is the user's."""
    text = "".join(map(chr, token_ids))
    spoken = [{"role": _ROLES[mark], "content": content} for mark, content in _SPOKEN.findall(text)]
    if not spoken:
        return [{"role": "user", "content": text}]
    # The last speaker has the word, and has said nothing yet.
    return spoken if spoken[-1]["content"] else spoken[:-1]


def answered(text: str, *, cut: bool) -> Generated:
    """An answer as a conversation keeps it. One that was not cut off ends its message."""
    said = _MARKS.sub("", text)
    token_ids = MESSAGES.encode(said if cut else said + _END)
    return Generated(
        token_ids=tuple(token_ids),
        logprobs=(0.0,) * len(token_ids),
        finish="length" if cut else "stop",
        weight_version=FIXED_VERSION,
        weight_runs=None,
    )
