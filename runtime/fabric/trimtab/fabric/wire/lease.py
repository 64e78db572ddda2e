"""How a trainer rank gets its rows: it asks for the batch of (policy, step, rank) and gets a lease of references.

    BatchRequest -> BatchLease | BatchNotReady | LeaseRefused        LeaseAck -> LeaseAcked | LeaseRefused

The rows themselves are read straight from the stream by sequence. A lease is acknowledged once the step is durable;
until then the same request gets the same rows again, so a crash neither loses nor doubles a sample. A batch may come in
several chunks, so that a rank can start before the whole batch exists; the last carries the totals of the step.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message, Part
from trimtab.fabric.wire.stage import MAX_COLUMNS, ColumnReference
from trimtab.fabric.wire.trajectory import MAX_PARTS, MAX_TURNS, TurnReward
from trimtab.fabric.wire.values import (
    Count,
    Finite,
    Identifier,
    Index,
    Name,
    Seconds,
    Slug,
    Text,
    Token,
    UnixSeconds,
    Version,
)

MAX_SAMPLES = 1 << 16
WorldSize = Annotated[int, Meta(ge=1, le=1 << 20)]


class StepTiming(Part, frozen=True, kw_only=True):
    """How long a rank's step took, and how much of it the rank stood still for want of rows: the balance report's w."""

    wait_seconds: Seconds
    step_seconds: Seconds


class BatchRequest(Message, frozen=True, kw_only=True):
    """A rank asks for its rows of a step. The same (policy, step, rank, chunk) always gets the same answer."""

    KIND: ClassVar[int] = 4
    MAX_BYTES: ClassVar[int] = 1 << 14

    job: Name
    policy: Name
    step: Count
    rank: Index
    world_size: WorldSize
    chunk: Index = 0
    """Which of the step's portions; there are more until one has the totals."""
    portions: Annotated[int, Meta(ge=1, le=64)] = 1
    """In how many portions the rank would rather have the step, each as soon as it exists. What the first rank to ask
    got is what all get."""
    attempt: Index = 0
    """Which incarnation of the trainer asks: a lower one than was seen is a process that should be dead."""
    trained: Count | None = None
    """Steps in the trainer's weights: all before this one unless it is said, as by a rank that asks ahead of need."""
    previous: StepTiming | None = None
    """Times of the newest of those, which is thereby reported as trained, though not yet as durable."""
    wait_hint: Seconds = 0.0
    """How long the rank would rather wait for an answer than ask again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rank(self.rank, self.world_size)
        if self.trained is not None and self.trained > self.step:
            raise InvalidFieldError(f"{self.trained} steps before step {self.step}", field="trained")

    @property
    def trained_steps(self) -> int:
        return self.step if self.trained is None else self.trained


class Episode(msgspec.Struct, frozen=True, array_like=True):
    """What an episode came to for one role, over all its rows, whoever holds them."""

    reward: Finite
    """The mean of its rows' rewards: rows of one episode do not count more because they are many."""
    rows: Annotated[int, Meta(ge=1, le=MAX_PARTS)] = 1
    trained_tokens: Count = 0
    """Of all its rows: an answer that is cut into rows is as long as it was."""
    truncated: bool = False
    """Whether a row ended because there was no room."""
    turns: Annotated[tuple[TurnReward, ...], Meta(max_length=MAX_TURNS)] = ()
    """Of all its rows, in the order of their numbers, where the policy learns by turns."""


class Group(Part, frozen=True, kw_only=True):
    """A whole prompt group, also episodes that other ranks hold: what advantages are made of. Episodes without rows are
    not in it.
    """

    group_id: Token
    prompt_id: Identifier
    episodes: Annotated[tuple[Episode, ...], Meta(min_length=1, max_length=65536)]
    columns: Annotated[tuple[ColumnReference, ...], Meta(max_length=MAX_COLUMNS)] = ()
    """What stages have computed about its rows, for the ranks to join to them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.columns and len({column.stage for column in self.columns}) != len(self.columns):
            raise InvalidFieldError("a stage is listed twice", field="columns")

    @property
    def rewards(self) -> tuple[float, ...]:
        return tuple(episode.reward for episode in self.episodes)


class SampleReference(Part, frozen=True, kw_only=True):
    """One row: where it lies in the stream, and what the trainer plans micro-batches with before it has the payload."""

    sequence: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    trajectory_id: Token
    group: Index
    """Position in the lease's groups."""
    episode: Index
    """Position in its group's episodes."""
    group_index: Index
    part: Index = 0
    reward: Finite
    prompt_tokens: Count
    response_tokens: Count
    trained_tokens: Count
    oldest_version: Version
    newest_version: Version
    uses: Index = 0
    """How often it was trained on before: 0 unless replayed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.oldest_version > self.newest_version:
            raise InvalidFieldError("older than the oldest version", field="newest_version")
        if self.trained_tokens > self.response_tokens:
            raise InvalidFieldError(f"{self.trained_tokens} of {self.response_tokens}", field="trained_tokens")


class StepTotals(Part, frozen=True, kw_only=True):
    """Sums over all ranks: what losses are normalised by, so that no result depends on how rows were dealt."""

    samples: Count
    """Rows."""
    groups: Count
    episodes: Count
    """Those that have rows."""
    tokens: Count
    trained_tokens: Count


class BatchLease(Message, frozen=True, kw_only=True):
    """The rows a rank holds until it acknowledges them or the lease expires."""

    KIND: ClassVar[int] = 5
    MINOR: ClassVar[int] = 1
    MAX_BYTES: ClassVar[int] = 32 << 20
    MAX_PLAIN_BYTES: ClassVar[int] = MAX_BYTES  # as many rows as it may have; compressed, they are a tenth of it

    lease_id: Token
    job: Name
    policy: Name
    step: Count
    rank: Index
    world_size: WorldSize
    stream: Name
    """The stream that the sequences count in: each dataflow shard has its own."""
    columns_stream: Name | None = None
    """That in which those of columns do; absent in jobs without stages."""
    groups: Annotated[tuple[Group, ...], Meta(max_length=MAX_SAMPLES)]
    samples: Annotated[tuple[SampleReference, ...], Meta(max_length=MAX_SAMPLES)]
    chunk: Index = 0
    dealt: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0
    """Says which groups the portion has. Ranks that are told different numbers were dealt to by two ledgers, of which
    one had lost its end: together their rows are no step."""
    totals: StepTotals | None = None
    """Present on the last chunk, and only there."""
    issued_at: UnixSeconds
    expires_at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rank(self.rank, self.world_size)
        if self.expires_at < self.issued_at:
            raise InvalidFieldError("before issued_at", field="expires_at")
        if self.columns_stream is None and any(group.columns for group in self.groups):
            raise InvalidFieldError("missing, and there are columns", field="columns_stream")
        for position, sample in enumerate(self.samples):
            if sample.group >= len(self.groups):
                raise InvalidFieldError(
                    f"{sample.group} of {len(self.groups)} groups", field=f"samples[{position}].group"
                )
            if sample.episode >= len(self.groups[sample.group].episodes):
                raise InvalidFieldError(
                    f"{sample.episode} of {len(self.groups[sample.group].episodes)} episodes",
                    field=f"samples[{position}].episode",
                )
        if len({sample.trajectory_id for sample in self.samples}) != len(self.samples):
            raise InvalidFieldError("a trajectory is listed twice", field="samples")
        if self.totals is not None and self.totals.samples < len(self.samples):
            raise InvalidFieldError("fewer samples in the step than in this lease", field="totals.samples")

    @property
    def last(self) -> bool:
        return self.totals is not None


AWAITS_EVALUATION = "awaits-evaluation"
"""The reason of a step that a round of evaluation comes before: its rows may be there."""


class BatchNotReady(Message, frozen=True, kw_only=True):
    """Nothing yet. Not an error: the rank waits and asks again."""

    KIND: ClassVar[int] = 6
    MAX_BYTES: ClassVar[int] = 1 << 14

    policy: Name
    step: Count
    reason: Slug
    retry_after: Seconds
    message: Text = ""


class LeaseAck(Message, frozen=True, kw_only=True):
    """The step is durable on this rank: its rows are consumed for good."""

    KIND: ClassVar[int] = 7
    MAX_BYTES: ClassVar[int] = 1 << 14

    lease_id: Token
    job: Name
    policy: Name
    step: Count
    rank: Index
    world_size: WorldSize
    attempt: Index = 0
    weight_version: Version
    """The version that contains the step."""
    acked_at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_rank(self.rank, self.world_size)


class LeaseAcked(Message, frozen=True, kw_only=True):
    """The acknowledgement is in the ledger. Repeating it is harmless and answered the same way."""

    KIND: ClassVar[int] = 8
    MAX_BYTES: ClassVar[int] = 1 << 14

    lease_id: Token
    step: Count


class Refusal(StrEnum):
    """Why a request or an acknowledgement will not be granted however often it is repeated."""

    UNKNOWN_POLICY = "unknown_policy"
    UNKNOWN_LEASE = "unknown_lease"
    STEP_CONSUMED = "step_consumed"
    STEP_AHEAD = "step_ahead"
    WORLD_SIZE = "world_size"
    SUPERSEDED = "superseded"
    FINISHED = "finished"
    MALFORMED = "malformed"
    UNPROVEN = "unproven"


class LeaseRefused(Message, frozen=True, kw_only=True):
    """A typed no, with the step that dataflow would serve next where it knows one."""

    KIND: ClassVar[int] = 9
    MAX_BYTES: ClassVar[int] = 1 << 14

    refusal: Refusal
    message: Text
    next_step: Count | None = None


def _check_rank(rank: int, world_size: int) -> None:
    if rank >= world_size:
        raise InvalidFieldError(f"{rank} in a world of {world_size}", field="rank")
