"""A process-reward model that learns: a critic's values say how much nearer each turn came to a reward."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.rollout.stages.computed import StageAnswerError
from trimtab.rollout.stages.contract import StageContext, StageRow


class Progress:
    """For a stage that computes TurnRewards `per: Row` and needs the stage of the critic's values. A turn is worth the
    value before the next turn less the value before itself.

    After the last turn nothing is expected: with `credit.outcomeWeight: 1`, that turn is worth the outcome less the
    value before it. All turns of a row then sum to the outcome less what was expected at its beginning, so that no turn
    pays which only looks good. With `credit.discount: 0` each turn is credited with its own progress alone.
    """

    def __init__(self, *, stage: str, weight: float = 1.0) -> None:
        if not weight > 0:
            raise ValueError(f"weight is {weight}: it must be more than 0")
        self._stage = stage
        self._weight = weight

    async def compute(self, row: StageRow, context: StageContext) -> Sequence[float]:
        values = row.columns.get(self._stage)
        if values is None:
            known = ", ".join(sorted(row.columns)) or "none"
            raise StageAnswerError(f"there is no column {self._stage!r}: the stages that this one needs are {known}")
        if len(values) != row.trained_tokens or sum(row.turn_tokens) != row.trained_tokens:
            raise StageAnswerError(
                f"{self._stage} has {len(values)} numbers, the row has {row.trained_tokens} trained tokens: name a "
                "stage that computes Values"
            )
        begins = np.cumsum([0, *row.turn_tokens[:-1]], dtype=np.int64)
        expected = values[begins].astype(np.float64)
        after = np.append(expected[1:], 0.0)
        return [float(one) for one in self._weight * (after - expected)]
