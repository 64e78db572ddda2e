"""A group as a stage reads it: rows and columns by their numbers in the streams, each checked against its task.

What lies in the streams is the word of other pods, which may be broken or hostile: what is not what the task names is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.row_claims import ClaimUnusable, RowClaims
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.envelope import decode, kind_of
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.spans import model_mask
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.rollout.worker.failures import TaskRefused

Read = TypeVar("Read", Trajectory, Column)
Numbers = npt.NDArray[np.float32]
_READ_DEADLINE_S = 60.0


class GroupGone(RuntimeError):
    """What the task asks about is not there any more. Nothing is purged that a group still waits for: this one was
    settled meanwhile, by another worker or by being given up."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GroupRow:
    """One row with its numbers so far."""

    trajectory: Trajectory
    reward: float
    columns: Mapping[str, Numbers]

    @property
    def trajectory_id(self) -> str:
        return self.trajectory.trajectory_id

    @property
    def mask(self) -> npt.NDArray[np.bool_]:
        return model_mask(self.trajectory.spans)

    @property
    def turn_ends(self) -> list[int]:
        """Where the last trained token of each trained turn is. Empty where the policy does not learn by turns."""
        trained = np.flatnonzero(self.mask)
        ends = np.cumsum([turn.tokens for turn in self.trajectory.turn_rewards], dtype=np.int64)
        return [int(trained[end - 1]) for end in ends]


@dataclass(frozen=True, kw_only=True)
class StageGroup:
    """All that a stage is asked about."""

    task: StageTask
    rows: tuple[GroupRow, ...]


class GroupReader:
    """Reads groups from the job's streams. Raises TaskRefused for what no other attempt would find different, and
    GroupGone."""

    def __init__(self, bus: Bus, topology: JobTopology, claims: RowClaims) -> None:
        self._bus = bus
        self._topology = topology
        self._claims = claims

    async def read(self, task: StageTask) -> StageGroup:
        rows = await self._frames(self._topology.trajectories.name, [row.sequence for row in task.rows])
        columns = await self._frames(self._topology.columns.name, [column.sequence for column in task.columns])
        by_stage = self._columns(task, columns)
        read = []
        for row, frame in zip(task.rows, rows, strict=True):
            trajectory = _decoded(frame, Trajectory, where=row.trajectory_id)
            if (trajectory.trajectory_id, trajectory.group_id) != (row.trajectory_id, task.group_id):
                raise TaskRefused(f"row {row.sequence} is {trajectory.trajectory_id}, asked was {row.trajectory_id}")
            own = {stage: numbers[row.trajectory_id] for stage, numbers in by_stage.items()}
            read.append(GroupRow(trajectory=trajectory, reward=row.reward, columns=own))
        return StageGroup(task=task, rows=tuple(read))

    def _columns(self, task: StageTask, frames: Sequence[bytes]) -> dict[str, dict[str, Numbers]]:
        found: dict[str, dict[str, Numbers]] = {}
        for reference, frame in zip(task.columns, frames, strict=True):
            where = f"column {reference.sequence} of {reference.stage}"
            column = _decoded(frame, Column, where=where)
            if (column.stage, column.group_id) != (reference.stage, task.group_id):
                raise TaskRefused(f"{where} is what {column.stage} says of {column.group_id}")
            numbers = column.by_row
            if missing := [row.trajectory_id for row in task.rows if row.trajectory_id not in numbers]:
                raise TaskRefused(f"{where} says nothing of {missing[0]}")
            found[reference.stage] = numbers
        return found

    async def _frames(self, stream: str, sequences: Sequence[int]) -> list[bytes]:
        if not sequences:
            return []
        stored = await get_messages(self._bus, stream, sequences, deadline_s=_READ_DEADLINE_S)
        if stored.missing:
            raise GroupGone(f"{stream} has no message {stored.missing[0]} any more")
        frames = [stored.messages[sequence].payload for sequence in sequences]
        return [await self._redeemed(frame) for frame in frames]

    async def _redeemed(self, frame: bytes) -> bytes:
        try:
            if kind_of(frame) != ClaimCheck.KIND:
                return frame
            return await self._claims.redeem(decode(frame, ClaimCheck))
        except (WireError, ClaimUnusable) as error:
            raise TaskRefused(str(error)) from error


def _decoded(frame: bytes, kind: type[Read], *, where: str) -> Read:
    try:
        return decode(frame, kind)
    except WireError as error:
        raise TaskRefused(f"{where}: {error}") from error
