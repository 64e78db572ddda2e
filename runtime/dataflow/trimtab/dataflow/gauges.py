"""Reports and results for Prometheus: the same figures under stable names."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.progress import StepProgress

_VOLUMES = ("produced", "accepted", "consumed")


class BalanceGauges:
    """What the newest reports say, from a policy's first one on, and what waits at this moment."""

    def __init__(self, metrics: Metrics) -> None:
        policy = ("policy",)
        self._wait = metrics.gauge("balance_wait_fraction", "Share of the window that the trainer waited", policy)
        self._current = metrics.gauge("balance_instances", "Rollout instances that serve the policy", policy)
        self._samples = metrics.gauge(
            "balance_samples", "Samples of the window, by what became of them", ("policy", "stage")
        )
        self._stale = metrics.gauge(
            "balance_window_stale_samples", "Samples of the window given up as too stale", policy
        )
        self._reward = metrics.gauge("step_reward", "Mean reward of the newest step's batch", policy)
        self._step = metrics.gauge("step", "Newest step that was granted", policy)
        self._staleness = metrics.gauge("step_staleness", "Mean age of the newest step's samples, in versions", policy)
        self._oldest = metrics.gauge("step_max_staleness", "Age of the oldest of the newest step's samples", policy)
        self._bound = metrics.gauge("staleness_bound", "Age at which samples are given up: data.maxStaleness", policy)
        self._buffered = metrics.gauge("buffered_samples", "Samples that wait for a step", policy)
        self._running = metrics.gauge("running_samples", "Samples asked for and not arrived", policy)
        self._room = metrics.gauge("buffer_room_samples", "The most that may wait or be in the making", policy)

    def watch(
        self, policy: str, *, bound: int, room: int, buffered: Callable[[], int], running: Callable[[], int]
    ) -> None:
        """What waits is read when somebody looks, because nothing reports it while the trainer takes nothing."""
        self._bound.labels(policy).set(bound)
        self._room.labels(policy).set(room)
        self._buffered.labels(policy).set_function(buffered)
        self._running.labels(policy).set_function(running)

    def show_report(self, report: BalanceReport) -> None:
        self._wait.labels(report.policy).set(report.wait_fraction)
        self._current.labels(report.policy).set(report.current)
        self._stale.labels(report.policy).set(report.stale_skipped)
        for stage in _VOLUMES:
            self._samples.labels(report.policy, stage).set(getattr(report, stage).samples)

    def show_step(self, progress: StepProgress) -> None:
        self._reward.labels(progress.policy).set(progress.reward)
        self._step.labels(progress.policy).set(progress.step)
        self._staleness.labels(progress.policy).set(progress.staleness)
        self._oldest.labels(progress.policy).set(progress.max_staleness)


class EvaluationGauges:
    """The latest results, one series per policy and benchmark."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ("policy", "benchmark")
        self._score = metrics.gauge("evaluation_score", "Mean reward on held-out prompts", labels)
        self._version = metrics.gauge("evaluation_version", "Version that was evaluated", labels)

    def show(self, result: EvaluationResult) -> None:
        self._version.labels(result.policy, result.benchmark).set(result.version)
        if result.score is not None:
            self._score.labels(result.policy, result.benchmark).set(result.score)
