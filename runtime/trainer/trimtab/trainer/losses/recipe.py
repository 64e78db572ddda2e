"""What makes up an algorithm: a loss of tokens, how they are averaged, and what rewards are compared with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

from trimtab.trainer.losses.averaging import Averaging
from trimtab.trainer.losses.clipping import ClipRange
from trimtab.trainer.losses.tokens import LossTokens
from trimtab.trainer.row_rewards import Advantages

UNCLIPPED = ClipRange(low=1.0, high=float("inf"))


class RatioTo(StrEnum):
    """Which policy a token's ratio is taken to."""

    SAMPLED = "sampled"
    """Always the one that sampled the token, whatever its version: the algorithm bounds that distance itself."""
    STEP_BEGIN = "step-begin"
    """Always the one at the beginning of the step; the way there from the sampling one is an importance weight."""
    EITHER = "either"
    """The beginning of the step when the manifest corrects with importance weights, else the sampling policy."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One algorithm as it was published."""

    token_losses: Callable[[LossTokens, ClipRange], torch.Tensor]
    averaging: Averaging
    clip: ClipRange = UNCLIPPED
    ratio_to: RatioTo = RatioTo.EITHER
    normalize_group_rewards: bool = True
    """Advantages are divided by their group's deviation."""
    leave_one_out: bool = False
    """A sample is compared with the others of its group instead of with all of it."""
    second_moment_bound: float | None = None
    """Tokens pushed too far away are left out over the whole step (see m2po.py)."""
    ratio_of_answers: bool = False
    """A token's ratio is that of its whole answer, so the whole answer is looked at first (see gspo.py)."""
    advantages: Advantages | None = None
    """What is made of a row; None, all its tokens have what comparing with the group gives."""
    value_head: bool = False
    """The network says values instead of probabilities (see critic.py)."""
    columns: tuple[str, ...] = ()
    """Stages whose word on a row is needed, for its advantages or for its loss."""
