"""Reports how the job is doing, to the operator and to Prometheus: progress after every grant, a balance report after
every window.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from trimtab.api.job import RLJob
from trimtab.dataflow.balance import (
    Mark,
    balance_report,
    buffered_samples,
    room_samples,
    running_samples,
    step_progress,
)
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.records import StepGranted
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.progress import StepProgress

_log = structlog.get_logger(__name__)
_IDLE_S = 5.0
_PUT_DEADLINE_S = 5.0
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
        self._parts = metrics.gauge(
            "step_reward_part",
            "Mean of a part of the reward in the newest step's batch",
            ("policy", "part"),
        )
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
        """What waits is read at each scrape, because nothing reports it while the trainer takes nothing."""
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
        for name, value in progress.reward_parts.items():
            self._parts.labels(progress.policy, name).set(value)
        self._step.labels(progress.policy).set(progress.step)
        self._staleness.labels(progress.policy).set(progress.staleness)
        self._oldest.labels(progress.policy).set(progress.max_staleness)


class Reporter:
    """Reports are advice: one that cannot be written is logged and the next one follows."""

    def __init__(
        self, books: Bookkeeper, job: RLJob, balance: KeyValue, members: MemberTable, gauges: BalanceGauges, *,
        clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self._books = books
        self._job = job
        self._balance = balance
        self._members = members
        self._gauges = gauges
        self._clock = clock
        self._pending: asyncio.Queue[StepGranted] = asyncio.Queue()
        self._marks = self._marked()
        self._anchored_anew = books.ledger.anchored_anew
        self._ready_before: dict[str, dict[str, float]] = {name: {} for name in books.ledger.trainers}
        for policy in books.ledger.trainers:
            gauges.watch(
                policy,
                bound=job.spec.data.max_staleness,
                room=room_samples(job, policy),
                buffered=partial(buffered_samples, books.ledger, job, policy),
                running=partial(running_samples, books.ledger, job, policy),
            )

    def _marked(self) -> dict[str, Mark]:
        ledger = self._books.ledger
        return {name: Mark.of(ledger, name, now=self._clock()) for name in ledger.trainers}

    def granted(self, record: StepGranted) -> None:
        self._pending.put_nowait(record)

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_IDLE_S):
                    record = await self._pending.get()
            except TimeoutError:
                continue
            await self._report_step(record)
            await self._report_window(record.policy)

    async def _report_step(self, record: StepGranted) -> None:
        groups = self._books.ledger.trainers[record.policy].allotments(record.step)
        if not groups:
            return
        progress = step_progress(
            self._books.ledger, self._job, policy=record.policy, step=record.step, groups=groups, now=self._clock()
        )
        self._gauges.show_step(progress)
        await self._put(JobTopology.progress_key(record.policy), encode(progress))

    async def _report_window(self, policy: str) -> None:
        books = self._books.ledger.trainers[policy]
        if self._anchored_anew != self._books.ledger.anchored_anew:
            # Counts and steps have moved by more than was produced: windows begin anew.
            self._anchored_anew = self._books.ledger.anchored_anew
            self._marks = self._marked()
        since = self._marks[policy]
        if books.timed_steps - since.step < self._job.spec.autoscaling.window_steps:
            return
        until = Mark.of(self._books.ledger, policy, now=self._clock())
        self._marks[policy] = until
        before, ready = self._ready_before[policy], self._members.ready_seconds()
        self._ready_before[policy] = ready
        report = balance_report(
            self._books.ledger,
            self._job,
            policy=policy,
            since=since,
            until=until,
            members=self._members.present,
            # One that went and came again has begun to count anew.
            ready_s={
                member: seconds - before.get(member, 0.0) if seconds >= before.get(member, 0.0) else seconds
                for member, seconds in ready.items()
            },
        )
        self._gauges.show_report(report)
        await self._put(JobTopology.report_key(policy), encode(report))

    async def _put(self, key: str, value: bytes) -> None:
        try:
            await self._balance.put(key, value, deadline_s=_PUT_DEADLINE_S)
        except BusError as error:
            _log.warning("report_not_written", key=key, error=str(error))
