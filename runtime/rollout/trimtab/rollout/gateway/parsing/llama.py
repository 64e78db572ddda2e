"""Llama 3: an answer that is JSON from its first character is a call, or several with semicolons between them."""

from __future__ import annotations

from trimtab.rollout.gateway.parsing.json_calls import called, values_in
from trimtab.rollout.gateway.parsing.reader import Called


class LlamaCalls:
    opening = "{"
    closing: str | None = None
    only_first = True

    def read(self, body: str) -> tuple[Called, ...] | None:
        values = values_in(body, separator=";")
        if not values:
            return None
        found = [
            # It was trained with both names.
            called(value, arguments="parameters" if isinstance(value, dict) and "parameters" in value else "arguments")
            for value in values
        ]
        calls = tuple(one for one in found if one is not None)
        return calls if len(calls) == len(found) else None
