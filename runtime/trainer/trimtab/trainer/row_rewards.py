"""What advantages are made of: the rewards of a row and its group, and what was computed about its trained tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.fabric.wire.lease import Episode
from trimtab.fabric.wire.trajectory import TurnReward

Numbers = npt.NDArray[np.float32]


def _none() -> Numbers:
    return np.zeros(0, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class RowRewards:
    """What a row brought in, and its episode."""

    reward: float
    episode: Episode
    trained_tokens: int
    turns: Sequence[TurnReward] = ()
    """Of the turns that are trained in the row, where the policy learns by turns."""
    logprobs: Numbers = field(default_factory=_none)
    """Of each trained token, as it was sampled."""
    columns: Mapping[str, Numbers] = field(default_factory=dict)
    """By stage, what it computed of each trained token."""


Advantages = Callable[[RowRewards, Numbers], npt.NDArray[np.floating[Any]]]
"""Of each trained token of a row. The second argument is what comparing with its group gives each of them."""
