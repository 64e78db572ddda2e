"""Code of a user's for a job with stages: what is computed about rows, and an algorithm that notes what it got."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.rollout.stages.contract import Numbers, StageContext, StageRow


class Doubled:
    """Twice what an earlier stage said, and the row's reward more."""

    def __init__(self, *, stage: str) -> None:
        self._stage = stage

    async def compute(self, rows: Sequence[StageRow], context: StageContext) -> list[Numbers]:
        assert all(row.text.endswith(row.answer) for row in rows)
        assert context.prompt["prompt"] in rows[0].text
        return [row.columns[self._stage] * 2 + np.float32(row.reward) for row in rows]


class Strict:
    """No reward for an answer that is not a digit; with `per: Row`."""

    async def compute(self, row: StageRow, context: StageContext) -> float:
        return row.reward if row.answer[:1].isdigit() else -1.0


class Witness:
    """Advantages of rewards alone, with the columns written to a file beside the job."""

    def __init__(self, *, file: str) -> None:
        self._file = Path(file)

    def recipe(self) -> Any:
        # It brings torch, which the stages above need not wait for.
        from trimtab.trainer.recipes import OVER_TOKENS, ClipRange, LossTokens, Recipe, RowRewards

        def losses(tokens: LossTokens, clip: ClipRange) -> Any:
            return -tokens.weights * tokens.advantages * tokens.logprobs

        def advantages(row: RowRewards, compared: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
            seen = {
                "sampled": row.logprobs.tolist(),
                "reward": row.reward,
                **{stage: numbers.tolist() for stage, numbers in row.columns.items()},
            }
            with self._file.open("a") as out:
                out.write(json.dumps(seen) + "\n")
            return compared

        return Recipe(
            token_losses=losses, averaging=OVER_TOKENS, advantages=advantages, columns=("reference", "doubled")
        )
