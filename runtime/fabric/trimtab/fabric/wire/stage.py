"""What a stage is asked to compute: something about the rows of one complete group, after they were sampled."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message, Part
from trimtab.fabric.wire.task import Opaque
from trimtab.fabric.wire.values import Finite, Identifier, Label, Name, Token, UnixSeconds, Versions, check_plain

MAX_ROWS = 1 << 16
MAX_COLUMNS = 64
StreamSequence = Annotated[int, Meta(ge=1, le=2**63 - 1)]


class StageRow(Part, frozen=True, kw_only=True):
    """A row of the group: where it lies in the stream of trajectories, and what it is worth so far."""

    sequence: StreamSequence
    trajectory_id: Token
    reward: Finite
    """As the workflow said, or the stages that this one needs."""


class ColumnReference(Part, frozen=True, kw_only=True):
    """Where the stream of columns has what a stage has computed about a group."""

    stage: Name
    sequence: StreamSequence


class StageTask(Message, frozen=True, kw_only=True):
    """One group for one stage. A worker that dies has it given to another; whose column comes first counts."""

    KIND: ClassVar[int] = 16
    MAX_BYTES: ClassVar[int] = 8 << 20

    job: Name
    stage: Name
    policy: Name
    """Whose rows these are."""
    group_id: Token
    prompt_id: Identifier
    label: Label = ""
    prompt: Opaque = msgspec.field(default_factory=dict)
    """What the prompt source gave: judges compare answers with it."""
    rows: Annotated[tuple[StageRow, ...], Meta(min_length=1, max_length=MAX_ROWS)]
    columns: Annotated[tuple[ColumnReference, ...], Meta(max_length=MAX_COLUMNS)] = ()
    """Of the stages that this one needs."""
    minimum_versions: Versions = msgspec.field(default_factory=dict)
    """Per policy that learns, the oldest weights that may compute it."""
    created_at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        check_plain(self.prompt, field="prompt")
        if len({row.trajectory_id for row in self.rows}) != len(self.rows):
            raise InvalidFieldError("a trajectory is listed twice", field="rows")

    @property
    def task_id(self) -> str:
        return stage_task_id(self.group_id, self.stage)


def stage_task_id(group_id: str, stage: str) -> str:
    return f"{group_id}.{stage}"
