"""What the ledger writes down before anyone outside can act on it. Replaying the records rebuilds the ledger."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from trimtab.dataflow.ledger.groups import Kept
from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.lease import WorldSize
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Finite, Index, Label, Name, Seconds, Token, UnixSeconds, Version, Versions

Labels = Annotated[tuple[Label, ...], Meta(min_length=1, max_length=64)]
LabelsByStream = Annotated[dict[Name, Labels], Meta(max_length=64)]
Groups = Annotated[tuple[Token, ...], Meta(max_length=1 << 20)]


class TasksIssued(Message, frozen=True, kw_only=True):
    """Tasks `first` to `first + count - 1` are out or about to be: ids follow from their numbers, contents from their
    prompts' places in the order. Places that a curator passed over have no task.
    """

    KIND: ClassVar[int] = 32
    MAX_BYTES: ClassVar[int] = 1 << 17

    first: Count
    count: Count
    positions: Annotated[tuple[Count, ...], Meta(max_length=4096)] = ()
    """The place of each task's prompt; empty when they follow one another from where the last record ended."""
    next_position: Count | None = None
    """Where the next record begins; None when that is right after these."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions and len(self.positions) != self.count:
            raise InvalidFieldError(f"{len(self.positions)} places for {self.count} tasks", field="positions")


class StepGranted(Message, frozen=True, kw_only=True):
    """These groups belong to this step for good, and those were too stale for it and are given up. A step may be
    granted in portions, so that ranks can begin before all of it is there.
    """

    KIND: ClassVar[int] = 33
    MAX_BYTES: ClassVar[int] = 8 << 20

    policy: Name
    step: Count
    groups: Groups
    """Trained for the first time by this policy."""
    replayed: Groups = ()
    """Trained before by this policy."""
    dropped: Groups = ()
    pooled: bool = False
    """Whether `groups` may be replayed later."""
    retired: Groups = ()
    """Will not be replayed again."""
    last: bool = True
    """Whether the step has all its groups now."""
    granted_at: UnixSeconds


class StepTimed(Message, frozen=True, kw_only=True):
    """The ranks have finished a step: how long it took them and how much of that they waited, summed over them."""

    KIND: ClassVar[int] = 34
    MINOR: ClassVar[int] = 1

    policy: Name
    step: Count
    ranks: WorldSize = 1
    """How many are in the sums. Before minor version 1 each rank had a record of its own."""
    wait_seconds: Seconds
    step_seconds: Seconds
    at: UnixSeconds


class StepDurable(Message, frozen=True, kw_only=True):
    """The step is in a checkpoint: it will never be asked for again."""

    KIND: ClassVar[int] = 35

    policy: Name
    step: Count


class TrainerAttempt(Message, frozen=True, kw_only=True):
    """A newer incarnation of a trainer has asked: older ones are refused from here on, and so is another number of
    ranks, which would get rows that others have.
    """

    KIND: ClassVar[int] = 36

    policy: Name
    attempt: Index
    world_size: WorldSize = 1


class PolicyFinished(Message, frozen=True, kw_only=True):
    """The policy needs no more batches. What it has not been granted by now is given up."""

    KIND: ClassVar[int] = 37

    policy: Name
    reason: Annotated[str, Meta(max_length=256)]


class PolicyContinued(Message, frozen=True, kw_only=True):
    """A finished policy is to reach more: it is given batches again, from the step on that is due."""

    KIND: ClassVar[int] = 45

    policy: Name


class GroupsDropped(Message, frozen=True, kw_only=True):
    """Groups too stale for this step, which has no batch yet: given up, so that fresh ones can take their place."""

    KIND: ClassVar[int] = 38
    MAX_BYTES: ClassVar[int] = 8 << 20

    policy: Name
    step: Count
    dropped: Groups


class StepTrained(Message, frozen=True, kw_only=True):
    """A trainer that has just resumed asked for the step after this one, which is therefore in its weights."""

    KIND: ClassVar[int] = 39

    policy: Name
    step: Count


class ReducedGroup(msgspec.Struct, frozen=True, array_like=True):
    """What a filter left of a group."""

    group_id: Token
    indices: Annotated[tuple[Index, ...], Meta(max_length=65536)] = ()
    """Of the episodes all of whose rows are kept."""
    rows: Annotated[tuple[tuple[Index, Index], ...], Meta(max_length=1 << 20)] = ()
    """Of other episodes, the index and the part of each row that is."""

    @property
    def kept(self) -> Kept:
        return Kept(self.indices, self.rows)


class GroupsFiltered(Message, frozen=True, kw_only=True):
    """What the filters said of groups that had arrived: kept as they are, kept in part, or left out."""

    KIND: ClassVar[int] = 40
    MAX_BYTES: ClassVar[int] = 8 << 20

    policy: Name
    kept: Groups = ()
    reduced: Annotated[tuple[ReducedGroup, ...], Meta(max_length=1 << 16)] = ()
    left_out: Groups = ()


class StreamsRouted(Message, frozen=True, kw_only=True):
    """Which policies' trajectories each trainer takes from here on. Before the first of these records each takes its
    own.
    """

    KIND: ClassVar[int] = 41

    routes: Annotated[dict[Name, Annotated[tuple[Name, ...], Meta(max_length=64)]], Meta(max_length=64)]
    labels: Annotated[dict[Name, LabelsByStream], Meta(max_length=64)] = msgspec.field(default_factory=dict)
    """By trainer and stream, the labels of the groups that it takes of it, where it does not take all."""


class BenchmarkPlan(msgspec.Struct, frozen=True, array_like=True):
    """What is evaluated: so many prompts of a benchmark, each so many times."""

    name: Name
    prompts: Annotated[int, Meta(ge=1)]
    samples: Annotated[int, Meta(ge=1, le=65536)]


class SettingsTaken(Message, frozen=True, kw_only=True):
    """The manifest says otherwise than it did, or for the first time, how large steps are, how old samples may be, and
    how fast is learnt. What is decided from here on goes by it.
    """

    KIND: ClassVar[int] = 47

    max_staleness: Count
    batch_sizes: Annotated[dict[Name, Count], Meta(max_length=256)]
    """By policy, in episodes."""
    learning_rates: Annotated[dict[Name, Finite], Meta(max_length=256)]
    at: UnixSeconds

    def says_as(self, other: SettingsTaken | None) -> bool:
        return other is not None and msgspec.structs.replace(self, at=other.at) == other


class EvaluationStarted(Message, frozen=True, kw_only=True):
    """A round of evaluation on these weights or newer ones."""

    KIND: ClassVar[int] = 43

    number: Count
    versions: Annotated[Versions, Meta(min_length=1)]
    benchmarks: Annotated[tuple[BenchmarkPlan, ...], Meta(min_length=1, max_length=64)]
    at: UnixSeconds


class EvaluationScore(msgspec.Struct, frozen=True, kw_only=True):
    """How a policy did on a benchmark."""

    benchmark: Name
    policy: Name
    version: Version
    """The policy's newest weights when the round began; its samples are of these or newer ones."""
    score: Finite | None
    """Mean reward of the episodes that did not fail; None when all did."""
    episodes: Count
    failed: Count
    oldest_version: Version | None
    """The weights that sampled."""
    newest_version: Version | None


class EvaluationEnded(Message, frozen=True, kw_only=True):
    """All samples of the round are here. Without scores it was given up: the manifest has other benchmarks now."""

    KIND: ClassVar[int] = 44
    MAX_BYTES: ClassVar[int] = 4 << 20

    number: Count
    scores: Annotated[tuple[EvaluationScore, ...], Meta(max_length=1 << 14)] = ()
    at: UnixSeconds


class LedgerAnchoredAnew(Message, frozen=True, kw_only=True):
    """Ledger and checkpoints of a policy did not meet; it goes on at the step that its trainer has proven. All groups
    of tasks before `issued` that are not part of a step which counts are given up, whichever policy they were for.
    """

    KIND: ClassVar[int] = 46

    policy: Name
    step: Count
    was_at: Count
    """Where the ledger was: before that step where it had lost its end, behind it where the trainer had."""
    issued: Count
    """The number of the next task. Those passed over may be of tasks that no record speaks of any more."""
    given_up: Count
    """Groups known to be, over all policies."""
    at: UnixSeconds
    lost_rows: bool = False
    """Whether it is the stream of trajectories that had lost something; the trainer has proven nothing then."""

    @property
    def is_forward(self) -> bool:
        """Whether it is the ledger that had lost something."""
        return self.step > self.was_at


class SnapshotPart(Message, frozen=True, kw_only=True):
    """A part of all that the ledger knows. Once all parts are here, older records are not needed."""

    KIND: ClassVar[int] = 42
    MAX_BYTES: ClassVar[int] = 1 << 20

    number: Count
    count: Count
    body: bytes


Record = (
    TasksIssued
    | StepGranted
    | StepTimed
    | StepDurable
    | TrainerAttempt
    | PolicyFinished
    | PolicyContinued
    | GroupsDropped
    | StepTrained
    | GroupsFiltered
    | StreamsRouted
    | SettingsTaken
    | EvaluationStarted
    | EvaluationEnded
    | LedgerAnchoredAnew
)
RECORDS: tuple[type[Message], ...] = (
    TasksIssued,
    StepGranted,
    StepTimed,
    StepDurable,
    TrainerAttempt,
    PolicyFinished,
    PolicyContinued,
    GroupsDropped,
    StepTrained,
    GroupsFiltered,
    StreamsRouted,
    SettingsTaken,
    EvaluationStarted,
    EvaluationEnded,
    LedgerAnchoredAnew,
)
