"""The heartbeat every pod leaves in the member bucket: who it is, what it does, how fast."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import InvalidFieldError
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Finite, Name, Rate, Slug, Tally, Token, UnixSeconds, Versions

SKIPPED_STEPS = "skipped_steps"
"""The kind of failure under which a trainer counts steps whose loss or gradient was not finite."""
UNARCHIVED_STEPS = "unarchived_steps"
"""Under which it counts steps whose rows are not in the archive, because the store took them too slowly."""

ANCHORED_ANEW = "ledger_anchored_anew"
"""Under which a dataflow counts how often its ledger and a policy's checkpoints did not meet."""
GIVEN_UP_GROUPS = "ledger_given_up_groups"
"""And the groups that it has given up because of that."""


class Role(StrEnum):
    """What a pod is."""

    DATAFLOW = "dataflow"
    ROLLOUT = "rollout"
    TRAINER = "trainer"


class State(StrEnum):
    """What a pod is ready for. Suspect and gone are judgements of the reader, never claims of the member."""

    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPING = "stopping"


class SandboxLayers(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What stands around the programs of a rollout pod."""

    holding: Annotated[tuple[Token, ...], Meta(max_length=16)] = ()
    missing: Annotated[dict[Token, Annotated[str, Meta(max_length=512)]], Meta(max_length=16)] = msgspec.field(
        default_factory=dict
    )
    """With the reason of each."""


class MemberHeartbeat(Message, frozen=True, kw_only=True):
    """One sign of life. Counters run since started_at, rates over the time since the last heartbeat, or
    for a trainer over its last step."""

    KIND: ClassVar[int] = 11
    MAX_BYTES: ClassVar[int] = 1 << 18

    member_id: Token
    job: Name
    role: Role
    pool: Name | None = None
    engine: Name | None = None
    """What samples in a rollout pod: openai is one whose weights never change."""
    state: State
    versions: Versions = msgspec.field(default_factory=dict)
    """Per policy, the weights it serves or trains."""
    in_flight: Count = 0
    mean_in_flight: Rate | None = None
    """Tasks that it had on average since the last heartbeat."""
    capacity: Count = 0
    """How many tasks it would run at once."""
    allowance: Count | None = None
    """How many it may have now: fewer while its weights are behind. Absent, as many as its capacity."""
    samples_per_second: Rate = 0.0
    tokens_per_second: Rate = 0.0
    completed: Count = 0
    failures: Tally = msgspec.field(default_factory=dict)
    """By kind of failure."""
    checkpoint_step: Count | None = None
    """Of a trainer: the step of its newest durable checkpoint, told by the rank that commits them."""
    measures: Annotated[dict[Slug, Finite], Meta(max_length=32)] = msgspec.field(default_factory=dict)
    """Of a trainer: what its newest step looked like, by name, and where the time of the last ones went (`seconds_…`).
    Of a rollout pod: how long its last weights took."""
    sandbox: SandboxLayers | None = None
    """Of a rollout pod that has one, as soon as it says so itself."""
    started_at: UnixSeconds
    sent_at: UnixSeconds

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.role is Role.ROLLOUT) != (self.pool is not None):
            raise InvalidFieldError(
                f"{self.role} with pool {self.pool!r}: rollout pods, and only they, have one", field="pool"
            )
