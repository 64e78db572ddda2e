"""Messages as a role's chat template shows them, and what of that is new behind a turn that was sampled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import takewhile
from typing import Any

from trimtab.rollout.gateway.exchange import Said, Tool, ToolCall
from trimtab.rollout.gateway.parsing.families import Family, family_of
from trimtab.rollout.gateway.parsing.reader import THOUGHT
from trimtab.rollout.policy.sampler import Completion
from trimtab.rollout.tokenizer import ChatTemplateError, Message, Tokenizer

# Stands for what the policy said. No template has a reason to change it.
_SAID = "trimtabsaidthis"
_TOKENIZERS = 64
"""That a worker has at most."""
_EMPTY_THOUGHT = f"{THOUGHT[0]}\n\n{THOUGHT[1]}\n\n"
"""Some templates show it in the latest turn alone, whether there was a thought or not."""


@dataclass(frozen=True)
class Behind:
    """What comes behind a turn: as the template writes it, and the tokens that the policy has not read or said yet."""

    text: str
    heard: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Rendering:
    """One tokenizer with the tools of one request. Raises ChatTemplateError for what the template refuses."""

    tokenizer: Tokenizer
    family: Family
    tools: tuple[Tool, ...] = ()

    def prompt(self, messages: Sequence[Said]) -> str:
        """All of them, and the words that make the assistant speak."""
        return self._text(messages)

    def behind(self, messages: Sequence[Said], *, turn: int, said: Completion) -> Behind | None:
        """What the template adds behind the assistant's message at this place; None where it would show other words up
        to there than it did before the later messages came.

        `said` is what was sampled for the message. A policy that stopped by itself has written the end of its turn,
        with the mark of the template or with another that stands for it.
        """
        message = messages[turn]
        for stand_in in _stand_ins(message):
            standing = [*messages[:turn], stand_in, *messages[turn + 1 :]]
            before_now, found_now, now = self._text(standing).partition(_SAID)
            before, found, alone = self._text(standing[: turn + 1]).partition(_SAID)
            if not found or not found_now:
                continue
            if message.reasoning.strip() not in before_now:
                return None
            if before.replace(_EMPTY_THOUGHT, "") != before_now.replace(_EMPTY_THOUGHT, ""):
                return None
            token_ids = self.tokenizer.encode(now)
            begins = self._after_calls(self.tokenizer.encode(alone), token_ids) if message.calls else 0
            return None if begins is None else Behind(now, tuple(self._behind_mark(token_ids[begins:], said)))
        return None

    def _after_calls(self, alone: Sequence[int], now: Sequence[int]) -> int | None:
        """Where behind the calls of a turn its end is: in what stays the same, whatever comes next."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(alone, now, strict=False)))
        marks = {_end_mark(self.tokenizer, self.family), _call_end_mark(self.tokenizer, self.family)} - {None}
        if not marks:
            return same
        return max((at for at in range(same) if now[at] in marks), default=None)

    def _behind_mark(self, token_ids: list[int], said: Completion) -> list[int]:
        if said.finish != "stop" or not said.token_ids or not token_ids:
            return token_ids
        last = said.token_ids[-1]
        stands_for_it = token_ids[0] == _end_mark(self.tokenizer, self.family) and self.tokenizer.is_mark(last)
        return token_ids[1:] if token_ids[0] == last or stands_for_it else token_ids

    def _text(self, messages: Sequence[Said]) -> str:
        if self.tokenizer.render is None:
            raise ChatTemplateError("the tokenizer has no chat template")
        arguments = {"tools": [_shown_tool(tool) for tool in self.tools]} if self.tools else {}
        return self.tokenizer.render(template_messages(messages, self.family), arguments)


@lru_cache(maxsize=_TOKENIZERS)
def family_for(tokenizer: Tokenizer) -> Family:
    """What its chat template makes of calls. Asked for every episode, and always the same."""
    render = tokenizer.render
    return family_of(None if render is None else lambda messages: render(messages, {}))


@lru_cache(maxsize=_TOKENIZERS)
def _end_mark(tokenizer: Tokenizer, family: Family) -> int | None:
    """The token that ends the assistant's turn, whoever speaks next; None where the next one's mark ends it."""
    rendering = Rendering(tokenizer=tokenizer, family=family)
    exchange = [Said(speaker="user", text="?"), Said(speaker="assistant", text=_SAID)]
    ends = [
        tokenizer.encode(rendering.prompt([*exchange, *more]).rpartition(_SAID)[2])
        for more in ([], [Said(speaker="user", text="?")])
    ]
    first = {end[0] if end else None for end in ends}
    return first.pop() if len(first) == 1 else None


def _call_end_mark(tokenizer: Tokenizer, family: Family) -> int | None:
    if family.call_end is None:
        return None
    token_ids = tokenizer.encode(family.call_end)
    return token_ids[0] if len(token_ids) == 1 else None


def template_messages(messages: Sequence[Said], family: Family) -> list[Message]:
    names: dict[str, str] = {}
    shown: list[Message] = []
    for said in messages:
        names.update({call.call_id: call.name for call in said.calls})
        one: dict[str, Any] = {"role": said.speaker, "content": said.text}
        if said.reasoning:
            one["reasoning_content"] = said.reasoning
        if said.calls:
            one["tool_calls"] = [_shown_call(call, family) for call in said.calls]
        if said.answers is not None:
            one["tool_call_id"] = said.answers
            if said.answers in names:
                one["name"] = names[said.answers]
        shown.append(one)
    return shown


def _shown_call(call: ToolCall, family: Family) -> dict[str, Any]:
    arguments: Any = call.arguments
    if not family.arguments_as_text:
        try:
            arguments = json.loads(call.arguments or "{}")
        except (ValueError, RecursionError):
            arguments = call.arguments
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": arguments}}


def _shown_tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}


def _stand_ins(said: Said) -> list[Said]:
    """Beside calls some templates leave out the text. Then the mark is in the first call."""
    in_text = replace(said, text=_SAID)
    if not said.calls:
        return [in_text]
    first, *others = said.calls
    return [in_text, replace(said, text="", calls=(replace(first, name=_SAID), *others))]
