"""What a pod's stages do, for Prometheus."""

from __future__ import annotations

from trimtab.fabric.metrics import Metrics
from trimtab.rollout.worker.metrics import HandBack

_OUTCOMES = ("completed", "retried", "handed_back", "quarantined", "obsolete")
_SECONDS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)


class StageWorkMetrics:
    """All stages that a pod runs."""

    def __init__(self, metrics: Metrics) -> None:
        self._groups = metrics.counter(
            "rollout_stage_groups", "Deliveries of a stage's task, by what came of them", ["stage", "outcome"]
        )
        self._rows = metrics.counter("rollout_stage_rows", "Rows of groups that a stage is done with", ["stage"])
        self._failures = metrics.counter(
            "rollout_stage_failures", "Attempts at a group in which a stage failed", ["stage", "kind"]
        )
        self._hand_backs = metrics.counter(
            "rollout_stage_hand_backs", "Stages' tasks given back for another worker", ["stage", "reason"]
        )
        self._seconds = metrics.histogram(
            "rollout_stage_seconds", "Time from a group's rows to its stored column", ["stage"], buckets=_SECONDS
        )
        self._deposited = metrics.counter(
            "rollout_deposited_columns", "Columns too large for a message of the bus, stored in object storage"
        )

    def begin(self, stage: str) -> None:
        # A series that begins with its first event hides it: Prometheus sees no increase from nothing to one.
        for outcome in _OUTCOMES:
            self._groups.labels(stage, outcome)

    def completed(self, stage: str, *, rows: int, seconds: float) -> None:
        self._groups.labels(stage, "completed").inc()
        self._rows.labels(stage).inc(rows)
        self._seconds.labels(stage).observe(max(0.0, seconds))

    def retried(self, stage: str) -> None:
        self._groups.labels(stage, "retried").inc()

    def quarantined(self, stage: str) -> None:
        self._groups.labels(stage, "quarantined").inc()

    def obsolete(self, stage: str) -> None:
        """Its group was settled before."""
        self._groups.labels(stage, "obsolete").inc()

    def handed_back(self, stage: str, reason: HandBack) -> None:
        self._groups.labels(stage, "handed_back").inc()
        self._hand_backs.labels(stage, reason.value).inc()

    def failure(self, stage: str, kind: str) -> None:
        self._failures.labels(stage, kind).inc()

    def deposited(self) -> None:
        self._deposited.inc()
