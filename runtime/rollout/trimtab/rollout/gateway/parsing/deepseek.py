"""DeepSeek V3 and R1: calls stand between marks of their own, and their arguments in a block of JSON code; since V3.1
name and arguments stand there alone.
"""

# ruff: noqa: RUF001 - the marks are written with these letters
from __future__ import annotations

import re

from trimtab.rollout.gateway.parsing.json_calls import values_in
from trimtab.rollout.gateway.parsing.reader import Called

_BEGIN = "<｜tool▁call▁begin｜>"
_END = "<｜tool▁call▁end｜>"
_SEPARATOR = "<｜tool▁sep｜>"
_BLOCK = re.compile(r"\s*(?P<name>[^\s`]+)\s*```(?:json)?\s*(?P<arguments>.*?)\s*```\s*", re.DOTALL)


class DeepSeekCalls:
    opening = "<｜tool▁calls▁begin｜>"
    closing: str | None = "<｜tool▁calls▁end｜>"
    only_first = False

    def read(self, body: str) -> tuple[Called, ...] | None:
        first, *rest = body.split(_BEGIN)
        if first.strip() or not rest:
            return None
        found = [_one(text) for text in rest]
        calls = tuple(one for one in found if one is not None)
        return calls if len(calls) == len(found) else None


def _one(text: str) -> Called | None:
    inside, ended, after = text.partition(_END)
    head, separated, tail = inside.partition(_SEPARATOR)
    if not ended or after.strip() or not separated:
        return None
    block = _BLOCK.fullmatch(tail) if head.strip() == "function" else None
    name, arguments = (block["name"], block["arguments"]) if block else (head.strip(), tail.strip())
    values = values_in(arguments)
    return Called(name=name, arguments=arguments) if name and values is not None and len(values) == 1 else None
