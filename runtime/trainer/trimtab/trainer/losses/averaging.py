"""How the losses of tokens become the loss of a step.

A step is computed in micro-batches, on several ranks, and begins before all of it exists; an answer may lie in several
rows. So an average is a sum here, which adds up however the step is cut up, and one division at the end by a number
that is global over the step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch

from trimtab.trainer.losses.tokens import LossTokens


class Denominator(StrEnum):
    """What the sum over the step is divided by."""

    EPISODES = "episodes"
    """All episodes of the step, those without a trained token too."""
    TOKENS = "tokens"
    """All trained tokens of the step."""


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """`total` sums up token losses so that divided by the denominator they are the step's loss."""

    total: Callable[[LossTokens, torch.Tensor], torch.Tensor]
    denominator: Denominator


def _total(tokens: LossTokens, values: torch.Tensor) -> torch.Tensor:
    return values.sum()


def _total_per_place(tokens: LossTokens, values: torch.Tensor) -> torch.Tensor:
    return values.sum() / tokens.longest_answer


def _total_of_means(tokens: LossTokens, values: torch.Tensor) -> torch.Tensor:
    return tokens.shares_of_means(values).sum()


OVER_TOKENS = Averaging(total=_total, denominator=Denominator.TOKENS)
"""Each token counts the same, so long answers count more."""
OVER_ANSWERS = Averaging(total=_total_of_means, denominator=Denominator.EPISODES)
"""Each answer counts the same, so tokens of long answers count less."""
OVER_PLACES = Averaging(total=_total_per_place, denominator=Denominator.EPISODES)
"""Over the places that answers could have filled: neither an answer's length nor that of others matters."""
ANSWER_SUMS = Averaging(total=_total, denominator=Denominator.EPISODES)
"""The log probability of an answer is the sum over its tokens."""
