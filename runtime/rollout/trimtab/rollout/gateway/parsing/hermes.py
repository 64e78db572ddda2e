"""Hermes, Qwen2.5 and Qwen3: each call is JSON between <tool_call> and </tool_call>."""

from __future__ import annotations

from trimtab.rollout.gateway.parsing.json_calls import called, values_in
from trimtab.rollout.gateway.parsing.reader import Called


class HermesCalls:
    opening = "<tool_call>"
    closing: str | None = "</tool_call>"
    only_first = False

    def read(self, body: str) -> tuple[Called, ...] | None:
        values = values_in(body)
        if values is None or len(values) != 1:
            return None
        one = called(values[0], arguments="arguments")
        return None if one is None else (one,)
