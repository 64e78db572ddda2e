"""Conditions of an object from one plan to the next: a transition time moves only when the status changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from trimtab.api.conditions import Condition, ConditionType

_MAX_MESSAGE = 4096


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What a plan says about an object."""

    type: ConditionType
    holds: bool | None
    """None for not known yet."""
    reason: str
    message: str = ""


def updated(
    present: Sequence[Condition], statements: Sequence[Statement], *, generation: int | None, now: float
) -> tuple[Condition, ...]:
    """The conditions with these statements in them; those about other things stay as they are."""
    known = {condition.type: condition for condition in present}
    for statement in statements:
        status = _status(statement.holds)
        before = known.get(statement.type)
        since = before.last_transition_time if before is not None and before.status == status else moment(now)
        known[statement.type] = Condition(
            type=statement.type,
            status=status,
            reason=statement.reason,
            message=statement.message[:_MAX_MESSAGE],
            last_transition_time=since,
            observed_generation=generation,
        )
    return tuple(known.values())


def find(conditions: Sequence[Condition], kind: ConditionType) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def without(conditions: Sequence[Condition], kind: ConditionType) -> tuple[Condition, ...]:
    return tuple(condition for condition in conditions if condition.type != kind)


def moment(now: float) -> datetime:
    """To the second, as Kubernetes writes times."""
    return datetime.fromtimestamp(int(now), tz=UTC)


def _status(holds: bool | None) -> Literal["True", "False", "Unknown"]:
    return "Unknown" if holds is None else "True" if holds else "False"
