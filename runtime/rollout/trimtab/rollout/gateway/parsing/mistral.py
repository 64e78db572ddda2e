"""Mistral: after [TOOL_CALLS] a JSON list of calls or, since version 11, names with [ARGS] and JSON each."""

from __future__ import annotations

from trimtab.rollout.gateway.parsing.json_calls import called, values_in
from trimtab.rollout.gateway.parsing.reader import Called

_ARGUMENTS = "[ARGS]"
_CALL_ID = "[CALL_ID]"


class MistralCalls:
    opening = "[TOOL_CALLS]"
    closing: str | None = None
    only_first = False

    def read(self, body: str) -> tuple[Called, ...] | None:
        found = [_named(one) for one in body.split(self.opening)] if _ARGUMENTS in body else _listed(body)
        calls = tuple(one for one in found if one is not None)
        return calls if calls and len(calls) == len(found) else None


def _listed(body: str) -> list[Called | None]:
    values = values_in(body)
    if not values or len(values) != 1 or not isinstance(values[0], list):
        return []
    return [called(value, arguments="arguments") for value in values[0]]


def _named(text: str) -> Called | None:
    name, _, arguments = text.partition(_ARGUMENTS)
    name, _, call_id = name.partition(_CALL_ID)
    values = values_in(arguments)
    if values is None or len(values) != 1 or not name.strip():
        return None
    return Called(name=name.strip(), arguments=arguments.strip(), call_id=call_id.strip() or None)
