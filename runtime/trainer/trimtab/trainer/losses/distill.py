"""On-policy distillation: a token that the policy sampled is credited with how much likelier its teacher holds it.

The mean of that is minus the divergence of the policy from the teacher, token by token, so a policy that says what its
teacher would has nothing left to learn. There is nothing to compare with: the group does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.trainer.losses.averaging import OVER_TOKENS
from trimtab.trainer.losses.clipping import ClipRange, clipped_tokens
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.row_rewards import Numbers, RowRewards

# What a teacher holds for impossible counts no more than this: one token would outweigh all others of the step.
_MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, kw_only=True)
class TeacherAdvantages:
    """`reward_weight` is that of what comparing with the group gives, beside the teacher's word."""

    stage: str
    reward_weight: float

    def __call__(self, row: RowRewards, compared: Numbers) -> npt.NDArray[np.float64]:
        likelier = row.columns[self.stage].astype(np.float64) - row.logprobs.astype(np.float64)
        return np.clip(likelier, -_MAX_LOG_RATIO, _MAX_LOG_RATIO) + self.reward_weight * compared.astype(np.float64)


def distill(*, stage: str, reward_weight: float) -> Recipe:
    return Recipe(
        token_losses=clipped_tokens,
        averaging=OVER_TOKENS,
        clip=ClipRange(low=0.2, high=0.2),
        advantages=TeacherAdvantages(stage=stage, reward_weight=reward_weight),
        columns=(stage,),
    )
