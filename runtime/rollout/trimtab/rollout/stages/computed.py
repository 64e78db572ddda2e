"""What a stage has computed about a group, checked against what it is to compute before anyone is told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.rollout.policy.scorer import ScoredTokens
from trimtab.rollout.stages.group import StageGroup
from trimtab.rollout.workflows.errors import WorkflowError

Numbers = npt.NDArray[np.float32]


class StageAnswerError(WorkflowError):
    """Code of the user's said something that its stage cannot pass on."""

    kind = "stage-answer"


@dataclass(frozen=True, kw_only=True)
class Computed:
    """Row by row. `rewards`, `turn_rewards` and `keep` are of the stages that compute them."""

    numbers: tuple[Numbers, ...]
    rewards: tuple[float, ...] | None = None
    turn_rewards: tuple[tuple[float, ...], ...] | None = None
    keep: tuple[bool, ...] | None = None
    versions: tuple[int, int] | None = None
    """The oldest and the newest weights that computed it, where they are of a policy that learns."""


class Computation(Protocol):
    """One kind of stage."""

    async def compute(self, group: StageGroup, *, deadline_s: float) -> Computed: ...


def finite_number(said: Any, *, what: str) -> float:
    """Raises StageAnswerError for what is no number, or none that can be reckoned with."""
    try:
        number = float(said)
    except (TypeError, ValueError):
        raise StageAnswerError(f"{what} is {type(said).__name__}, a number is wanted") from None
    if not np.isfinite(np.float32(number)):
        raise StageAnswerError(f"{what} is {number}, a finite number is wanted")
    return number


def finite_numbers(said: Any, *, count: int, what: str) -> Numbers:
    """So many of them."""
    try:
        numbers = np.asarray(said, dtype=np.float32)
    except (TypeError, ValueError):
        raise StageAnswerError(f"{what} is {type(said).__name__}, {count} numbers are wanted") from None
    if numbers.shape != (count,):
        raise StageAnswerError(f"{what} has the shape {list(numbers.shape)}, {count} numbers are wanted")
    if not np.isfinite(numbers).all():
        raise StageAnswerError(f"{what} has a number that is not finite")
    return numbers


def versions_of(scored: Iterable[ScoredTokens], *, learns: bool) -> tuple[int, int] | None:
    """The oldest and the newest that rows were computed with."""
    found = list(scored)
    if not learns or not found:
        return None
    return min(one.oldest_version for one in found), max(one.newest_version for one in found)
