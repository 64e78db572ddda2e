"""JSON that names a function and its arguments, which most families write in one way or another."""

from __future__ import annotations

import json
from typing import Any

from trimtab.rollout.gateway.parsing.reader import Called

_DECODER = json.JSONDecoder()


def called(value: object, *, arguments: str) -> Called | None:
    """From an object with a `name` and, under the name given, the arguments; None where it is something else."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    given = value.get(arguments, {})
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    call_id = value.get("id")
    return Called(name=value["name"], arguments=text, call_id=call_id if isinstance(call_id, str) else None)


def values_in(text: str, *, separator: str = "") -> list[Any] | None:
    """JSON values one after the other; None where there is anything else."""
    values: list[Any] = []
    rest = text.strip()
    while rest:
        try:
            value, end = _DECODER.raw_decode(rest)
        except (ValueError, RecursionError):
            return None
        values.append(value)
        rest = rest[end:].strip()
        if separator and rest.startswith(separator):
            rest = rest.removeprefix(separator).strip()
    return values
