"""What code of one's own gets in a stage, and what it gives back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trimtab.rollout.workflows.team import Team

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, eq=False)
class StageRow:
    """One row of a group, as it was sampled, with what earlier stages have said of it."""

    trajectory_id: str
    token_ids: npt.NDArray[np.int32]
    mask: npt.NDArray[np.bool_]
    """Where a token is trained."""
    text: str
    """Of all its tokens, prompt included."""
    answer: str
    """Of the trained tokens alone."""
    reward: float
    """As the workflow said, or the stages that this one needs."""
    turn_tokens: tuple[int, ...]
    """Trained tokens of each trained turn; empty where the policy does not learn by turns."""
    columns: Mapping[str, Numbers]
    """By stage that this one needs: one number for each trained token, for each turn, or one."""

    @property
    def trained_tokens(self) -> int:
        return int(self.mask.sum())


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """What a stage knows about a group besides its rows."""

    group_id: str
    policy: str
    """Whose rows these are."""
    prompt: Mapping[str, Any]
    """What the prompt source gave."""
    label: str
    team: Team | None
    """To converse with the stage's policy, which is the only role; None where the stage asks none."""


class RowPlugin(Protocol):
    """With `per: Row`. Several rows are computed at the same time."""

    async def compute(self, row: StageRow, context: StageContext) -> Any:
        """What the stage says of the row: see GroupPlugin."""


class GroupPlugin(Protocol):
    """With `per: Group`."""

    async def compute(self, rows: Sequence[StageRow], context: StageContext) -> Sequence[Any]:
        """For each row in order. Reward: a number. TurnRewards: a number for each trained turn. Filter: whether it is
        kept. Custom: a number for each trained token.
        """
