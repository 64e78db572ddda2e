"""What the ledger writes down before anyone outside can act on it. Replaying the records rebuilds the ledger."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Index, Name, Seconds, Token, UnixSeconds


class TasksIssued(Message, frozen=True, kw_only=True):
    """Tasks `first` to `first + count - 1` are out or about to be: ids and contents follow from their numbers."""

    KIND: ClassVar[int] = 32

    first: Count
    count: Count


class StepGranted(Message, frozen=True, kw_only=True):
    """These groups belong to this step for good, and those were too stale for it and are given up."""

    KIND: ClassVar[int] = 33
    MAX_BYTES: ClassVar[int] = 8 << 20

    policy: Name
    step: Count
    groups: Annotated[tuple[Token, ...], Meta(max_length=1 << 20)]
    dropped: Annotated[tuple[Token, ...], Meta(max_length=1 << 20)] = ()
    granted_at: UnixSeconds


class StepTimed(Message, frozen=True, kw_only=True):
    """A rank has finished a step and says how long it took and how much of that it waited."""

    KIND: ClassVar[int] = 34

    policy: Name
    step: Count
    rank: Index
    wait_seconds: Seconds
    step_seconds: Seconds
    at: UnixSeconds


class StepDurable(Message, frozen=True, kw_only=True):
    """The step is in a checkpoint: it will never be asked for again."""

    KIND: ClassVar[int] = 35

    policy: Name
    step: Count


class TrainerAttempt(Message, frozen=True, kw_only=True):
    """A newer incarnation of a trainer has asked: older ones are refused from here on."""

    KIND: ClassVar[int] = 36

    policy: Name
    attempt: Index


class PolicyFinished(Message, frozen=True, kw_only=True):
    """The policy needs no more batches."""

    KIND: ClassVar[int] = 37

    policy: Name
    reason: Annotated[str, Meta(max_length=256)]


Record = TasksIssued | StepGranted | StepTimed | StepDurable | TrainerAttempt | PolicyFinished
RECORDS: tuple[type[Message], ...] = (
    TasksIssued,
    StepGranted,
    StepTimed,
    StepDurable,
    TrainerAttempt,
    PolicyFinished,
)
