"""Runs a rule's CEL offline. The engine is Rust's (package common-expression-language); values are given the types the
API server gives them, so that the same expression has the same outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from trimtab.api.schema import Schema

if TYPE_CHECKING:
    import cel


class RuleEvaluationError(ValueError):
    """A rule could not be evaluated on this value; the API server refuses the value then too."""


def all_hold(expressions: Sequence[str], value: Any) -> bool:
    """Whether every one of them is known to be true of `value`. Handing the value over is most of the work, and here it
    is done once."""
    try:
        return holds(" && ".join(f"({expression})" for expression in expressions), value)
    except RuleEvaluationError:
        return False


def holds(expression: str, value: Any, *, before: Any = None) -> bool:
    """Whether `expression` is true of `value`, which must come from `typed`; in a transition rule, `before` is what it
    takes the place of."""
    return _evaluated(expression, value, before) is True


def text(expression: str, value: Any) -> str:
    """What `expression` says of `value`, which must come from `typed`."""
    return str(_evaluated(expression, value))


def _evaluated(expression: str, value: Any, before: Any = None) -> Any:
    try:
        return _compiled(expression).execute({"self": value} if before is None else {"self": value, "oldSelf": before})
    except (ValueError, TypeError, RuntimeError) as error:
        raise RuleEvaluationError(str(error)) from error


@cache
def _compiled(expression: str) -> cel.Program:
    # Imported here because the package brings a whole terminal toolkit along, and a process that only reads objects
    # from the API server never evaluates a rule.
    import cel

    return cel.compile(expression)


def typed(value: Any, schema: Schema) -> Any:
    """`value` with numbers in the type the schema declares, less what the schema does not know: CEL sees no unknown
    fields."""
    if schema.get("type") == "number":
        return float(value)
    if schema.get("type") == "integer":
        return int(value)
    if isinstance(value, dict) and "properties" in schema:
        return {key: typed(value[key], field) for key, field in schema["properties"].items() if key in value}
    if isinstance(value, list) and "items" in schema:
        return [typed(item, schema["items"]) for item in value]
    if isinstance(value, dict) and schema.get("x-kubernetes-preserve-unknown-fields"):
        return {}
    return value
