"""Generalised advantage estimation: what a token led to, beyond what a critic expected before it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.api.algorithm import Credit
from trimtab.trainer.row_rewards import Numbers, RowRewards

Doubles = npt.NDArray[np.float64]
# Powers of the decay from one token to the next are made for so many tokens: a step of Python for each of these runs.
_RUN = 128


@dataclass(frozen=True, kw_only=True)
class CriticAdvantages:
    """Of a row, from the column of the stage that asked the critic."""

    stage: str
    discount: float
    decay: float
    """Lambda."""
    credit: Credit

    def __call__(self, row: RowRewards, compared: Numbers) -> Doubles:
        values = row.columns[self.stage].astype(np.float64)
        return gae(token_rewards(row, self.credit), values, discount=self.discount, decay=self.decay)


def token_rewards(row: RowRewards, credit: Credit) -> Doubles:
    """What each trained token of a row earned: the outcome comes with the last, and where the policy learns by turns,
    what a turn earned with the last of the turn.
    """
    rewards = np.zeros(row.trained_tokens, dtype=np.float64)
    if row.trained_tokens == 0:
        return rewards
    if credit.type == "Outcome":
        rewards[-1] = row.reward
        return rewards
    rewards[-1] = credit.outcome_weight * row.reward
    # What a turn earned is the lease's word: a stage may have replaced what the row says of it.
    earned = {turn.number: turn.reward for turn in row.episode.turns}
    ends = np.cumsum([turn.tokens for turn in row.turns]) - 1
    np.add.at(rewards, ends, [earned[turn.number] for turn in row.turns])
    return rewards


def gae(rewards: Doubles, values: Doubles, *, discount: float, decay: float) -> Doubles:
    """Of tokens in their order. `values` are what was expected before each; nothing is expected after the last."""
    following = np.append(values[1:], 0.0)[: len(values)]
    surprises = rewards + discount * following - values
    return _decayed_sums(surprises[::-1], factor=discount * decay)[::-1]


def _decayed_sums(values: Doubles, *, factor: float) -> Doubles:
    """Of each place, the sum of all up to it, each `factor` times as much for every place in between."""
    sums = np.empty_like(values)
    places = np.arange(_RUN)
    lags = places[:, None] - places
    within = np.where(lags >= 0, float(factor) ** np.maximum(lags, 0), 0.0)
    carried = float(factor) ** (places + 1)
    before = 0.0
    for first in range(0, len(values), _RUN):
        run = values[first : first + _RUN]
        count = len(run)
        sums[first : first + count] = within[:count, :count] @ run + carried[:count] * before
        before = sums[first + count - 1]
    return sums
