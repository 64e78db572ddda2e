"""What the page is told, as it is encoded: of every run a line, of those that are looked at what happened and what is
now. All of it is shown as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from trimtab.cli.chronicle.records import Began, Died, Ended, Rescaled


class Told(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened in a run: figures of a step, or an event."""

    t: float
    """Running time in seconds: pauses between runs do not count."""
    at: float
    """Unix time."""
    step: int | None = None
    """Counted from 1, as people are told it; a version has the number of the steps before it."""
    values: Mapping[str, float] = msgspec.field(default_factory=dict)
    event: Began | Rescaled | Died | Ended | None = None


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run in the list."""

    id: str
    job: str
    where: str
    """Folder, or namespace."""
    state: str
    """As a word: running, succeeded, stopped, failed, killed; in a cluster the reason of its summary condition."""
    trouble: str = ""
    """Why what is shown of it is not all."""
    policies: Sequence[str] = ()
    step: int = 0
    """Of the policy that is furthest behind."""
    max_steps: int | None = None
    reward: float | None = None
    """Mean of the last window, over policies."""
    scores: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The newest by benchmark."""
    ready: int = 0
    """Rollout replicas that take tasks."""
    wanted: int = 0
    began_at: float | None = None
    changed_at: float | None = None
    seconds: float = 0.0
    curve: Sequence[float] = ()
    """Rewards so far, averaged to a few."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One of the few figures that a run comes down to."""

    name: str
    value: str
    note: str


class Pod(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    role: str
    pool: str = ""
    engine: str = ""
    state: str
    doing: str = ""
    """In words."""
    versions: Mapping[str, int] = msgspec.field(default_factory=dict)
    in_flight: int = 0
    capacity: int = 0
    samples_per_second: float = 0.0
    tokens_per_second: float = 0.0
    completed: int = 0
    failures: Mapping[str, int] = msgspec.field(default_factory=dict)
    started_at: float | None = None


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """What happens to rows between rollout and trainer, over the last window of a policy."""

    name: str
    policy: str
    per_second: float
    waiting: int
    failed: int


class GivenUpTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    task: str
    prompt: str = ""
    error: str
    message: str = ""
    where: str = ""
    worker: str
    attempts: int
    at: float


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What autoscaling makes of the latest reports, also where nothing follows."""

    mode: str
    current: int
    recommended: int
    bounded: int
    reason: str
    message: str
    maintainer: str
    at: float | None = None


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    status: str
    reason: str
    message: str


class Now(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What matters now, and is in no history."""

    live: bool = False
    """Whether anybody is asked. Otherwise there is nothing here because the run has ended."""
    pods: Sequence[Pod] = ()
    stages: Sequence[Stage] = ()
    given_up: Sequence[GivenUpTask] = ()
    decision: Decision | None = None
    conditions: Sequence[Condition] = ()
    trouble: str = ""
    """Why something that should be here is not."""
