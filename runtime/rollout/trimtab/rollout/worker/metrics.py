"""What a rollout worker tells Prometheus. Every label has few values: kinds of failures are bounded before they come
here, and tasks, prompts and workers are never labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.trajectory import Empty, Failed, Scored, Trajectory

_GROUP_OUTCOMES = ("completed", "retried", "quarantined", "handed_back")
_OUTCOMES: dict[type, str] = {Scored: "scored", Failed: "failed", Empty: "empty"}
_EPISODE_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class HandBack(StrEnum):
    """Why a task was given to another worker without counting against it."""

    DRAINING = "draining"
    WEIGHTS = "weights"
    """Those that it asks for did not come in time."""
    BUS = "bus"
    """What came of it could not be stored or settled."""
    STORE = "store"
    """Nor could a row that is too large for the bus, in object storage."""


class Occupation(Protocol):
    """What a worker has and may have."""

    @property
    def in_flight(self) -> int: ...

    @property
    def allowance(self) -> int: ...


class Served(Protocol):
    """A policy's weights: the version that is served, and by how many it is behind what was announced."""

    @property
    def version(self) -> int: ...

    @property
    def lag(self) -> int: ...


class RolloutMetrics:
    """One worker."""

    def __init__(self, metrics: Metrics) -> None:
        self._failures = metrics.counter(
            "rollout_failures", "Attempts at a group that failed, by what failed first", ["kind"]
        )
        self._episodes = metrics.counter("rollout_episodes", "Episodes that came to an end", ["outcome"])
        self._episode_seconds = metrics.histogram(
            "rollout_episode_seconds", "Time of an episode, finished or failed", buckets=_EPISODE_SECONDS
        )
        self._groups = metrics.counter("rollout_groups", "Deliveries of a task, by what came of them", ["outcome"])
        for outcome in _GROUP_OUTCOMES:
            # A series that begins with its first event hides it: Prometheus sees no increase from nothing to one.
            self._groups.labels(outcome)
        self._hand_backs = metrics.counter("rollout_hand_backs", "Tasks given back for another worker", ["reason"])
        self._trajectories = metrics.counter("rollout_trajectories", "Trajectories stored", ["outcome"])
        self._tokens = metrics.counter("rollout_tokens", "Tokens in stored trajectories", ["producer"])
        self._redundancy = metrics.gauge(
            "rollout_prefix_redundancy",
            "Tokens in rows over distinct tokens, since the worker began: 1 where no two rows share any",
            ["policy"],
        )
        self._deposited = metrics.counter(
            "rollout_deposited_rows", "Rows too large for a message of the bus, stored in object storage"
        )
        self._not_stored = metrics.counter(
            "rollout_not_stored", "Attempts to store a group that a full or absent store did not take"
        )
        self._rows: dict[str, tuple[int, int]] = {}
        self._blocked = metrics.counter(
            "rollout_event_loop_blocked_seconds", "Time in which a workflow kept everything else waiting"
        )
        self._in_flight = metrics.gauge("rollout_in_flight", "Groups that are begun and not settled")
        self._allowance = metrics.gauge("rollout_allowance", "Groups whose episodes it may run now")
        self._version = metrics.gauge("rollout_weight_version", "Weights that are served", ["policy"])
        self._lag = metrics.gauge(
            "rollout_weight_lag", "Versions of the weights that were announced and are not served yet", ["policy"]
        )

    def watch(self, worker: Occupation, versions: Mapping[str, Served]) -> None:
        """Gauges are read at each scrape."""
        self._in_flight.set_function(lambda: worker.in_flight)
        self._allowance.set_function(lambda: worker.allowance)
        for policy, served in versions.items():
            self._version.labels(policy).set_function(partial(_version, served))
            self._lag.labels(policy).set_function(partial(_lag, served))

    def episode(self, *, seconds: float, failed: bool) -> None:
        self._episodes.labels("failed" if failed else "completed").inc()
        self._episode_seconds.observe(max(0.0, seconds))

    def rows(self, policy: str, *, tokens: int, distinct: int) -> None:
        """Of one role in one episode."""
        all_tokens, all_distinct = self._rows.get(policy, (0, 0))
        self._rows[policy] = all_tokens + tokens, all_distinct + distinct
        if all_distinct + distinct:
            self._redundancy.labels(policy).set((all_tokens + tokens) / (all_distinct + distinct))

    def not_stored(self) -> None:
        self._not_stored.inc()

    def failure(self, kind: str) -> None:
        self._failures.labels(kind).inc()

    def completed(self) -> None:
        self._groups.labels("completed").inc()

    def retried(self) -> None:
        self._groups.labels("retried").inc()

    def quarantined(self) -> None:
        self._groups.labels("quarantined").inc()

    def handed_back(self, reason: HandBack) -> None:
        self._groups.labels("handed_back").inc()
        self._hand_backs.labels(reason.value).inc()

    def published(self, trajectories: Sequence[Trajectory]) -> None:
        for trajectory in trajectories:
            self._trajectories.labels(_OUTCOMES[type(trajectory.outcome)]).inc()
            for span in trajectory.spans:
                self._tokens.labels(span.producer.name.lower()).inc(span.length)

    def deposited(self) -> None:
        self._deposited.inc()

    def loop_blocked(self, seconds: float) -> None:
        self._blocked.inc(seconds)


def _version(served: Served) -> int:
    return served.version


def _lag(served: Served) -> int:
    return served.lag


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Per second."""

    samples: float
    tokens: float


class Throughput:
    """Turns counters that only grow into rates between two heartbeats."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = (clock(), 0, 0)

    def since_last(self, *, samples: int, tokens: int) -> Rates:
        at, samples_before, tokens_before = self._last
        now = self._clock()
        elapsed = max(now - at, 1e-3)
        self._last = (now, samples, tokens)
        return Rates(samples=(samples - samples_before) / elapsed, tokens=(tokens - tokens_before) / elapsed)
