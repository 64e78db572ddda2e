"""What a task and its trajectories are for. Evaluations travel the same way and must never reach a training batch."""

from __future__ import annotations

from enum import StrEnum

from trimtab.fabric.wire.errors import InvalidFieldError


class Purpose(StrEnum):
    TRAIN = "train"
    EVALUATION = "evaluation"


def check_benchmark(purpose: Purpose, benchmark: str | None) -> None:
    """An evaluation names its benchmark, and nothing else does."""
    if (purpose is Purpose.EVALUATION) != (benchmark is not None):
        raise InvalidFieldError(
            f"{purpose} with benchmark {benchmark!r}: evaluations, and only they, name one", field="benchmark"
        )
