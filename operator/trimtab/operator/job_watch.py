"""Follows what a running job says of itself on the bus: steps, balance reports, members, weights."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import fsum

import structlog

from trimtab.api.evaluation import EvaluationResult as Score
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.admission_hold import HOLD_S, hold_admission
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused, StreamFull, TopologyMismatch
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.restarts import RestartPolicy
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.member import ANCHORED_ANEW, GIVEN_UP_GROUPS, SKIPPED_STEPS, UNARCHIVED_STEPS, Role
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.quarantine import QuarantinedTask
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.operator.dataflow_pulse import DataflowPulse
from trimtab.operator.fleet_telling import FleetTelling
from trimtab.operator.plan.durability import Durability, SyncInterval
from trimtab.operator.plan.lifecycle import GivenUp
from trimtab.operator.plan.progress import JobReport, PolicyReport, Silences
from trimtab.operator.plan.room import Room, judged
from trimtab.operator.stream_usage import usage_of

_log = structlog.get_logger(__name__)
_DEADLINE_S = 30.0
_LOOK_AT_ROOM_S = 5.0
_LOOK_FOR_SILENCE_S = 0.5
_ANSWER_S = 1.0
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=2.0, cap_s=30.0), stable_s=60.0)
_HISTORY = 10_000
_REPORTS = 10
_GIVEN_UP = 1000
_BENCHMARKS = 32
_NAMES = 100_000
"""Of members and quarantined tasks that are remembered: pods write them, as many as they like."""
_TRAINING_TASK = re.compile(r"t([0-9]{1,18})")


JobMessage = StepProgress | BalanceReport | EvaluationResult | WeightPointer
"""What a job says of itself on the bus, as a listener is told it."""


@dataclass
class PolicyView:
    """What is known of one policy."""

    steps: deque[StepProgress] = field(default_factory=lambda: deque(maxlen=_HISTORY))
    reports: deque[BalanceReport] = field(default_factory=lambda: deque(maxlen=_REPORTS))
    """Newest first."""
    weights: WeightPointer | None = None
    evaluations: dict[str, EvaluationResult] = field(default_factory=dict)
    """The newest result by benchmark."""

    def summary(self, *, window: int) -> PolicyReport | None:
        """For the job's status, over the last steps; None before the first."""
        if not self.steps:
            return None
        last = list(self.steps)[-window:]
        return PolicyReport(
            step=last[-1].step + 1,
            version=self.weights.version if self.weights else 0,
            # Rounded, because people read them in columns.
            reward=round(_mean([step.reward for step in last]), 4),
            waiting_fraction=round(last[-1].wait_fraction, 3),
            staleness=round(_mean([step.staleness for step in last]), 2),
            evaluation=tuple(
                Score(
                    benchmark=result.benchmark,
                    score=result.score,
                    step=result.version,
                    episodes=result.episodes,
                    best_step=result.best_version,
                    best_score=result.best_score,
                    time=datetime.fromtimestamp(int(result.at), tz=UTC),
                )
                for result in self.evaluations.values()
                if result.score is not None
            ),
        )


class JobWatch:
    """Keeps the latest of everything; readers read whenever they like. `listener` is told each message, the latest ones
    again when the watch begins anew.
    """

    def __init__(
        self,
        bus: Bus,
        topology: JobTopology,
        policies: list[str],
        *,
        task_lease_s: float | None = None,
        history: int = _HISTORY,
        sync: SyncInterval | None = None,
        listener: Callable[[JobMessage], None] | None = None,
        on_silence: Callable[[], None] = lambda: None,
    ) -> None:
        """With `task_lease_s` it makes the consumers of tasks and stages too, for workers that may not. `history` is
        how many steps of a policy are kept, `sync` how the server is set up, where that is known. `on_silence` is
        called when a dataflow has fallen silent, or speaks again."""
        self.task_lease_s = task_lease_s
        self._bus = bus
        self._listener = listener if listener is not None else lambda _: None
        self._topology = topology
        self.policies = {policy: PolicyView(steps=deque(maxlen=history)) for policy in policies}
        self.members = MemberTable(ttl_s=topology.member_ttl_s, clock=time.monotonic)
        self.pulse = DataflowPulse(clock=time.monotonic, look_every_s=_LOOK_FOR_SILENCE_S)
        self._on_silence = on_silence
        self.fleet = FleetTelling(bus, topology)
        self._silences = Silences()
        self._quarantined: set[str] = set()
        self._ever_present: set[str] = set()
        self._given_up: deque[GivenUp] = deque(maxlen=_GIVEN_UP)
        self._any_completed = False
        self.disk_shortage: Room | None = None
        """Set where whoever watches has the servers' disk, too, and it is full."""
        self._room: Room | None = None
        self._sync = sync
        self._durability: Durability | None = None
        self.refusal: str | None = None
        """Why the server does not take the streams as they are asked for."""
        self._hold: tuple[str | None, float] = (None, 0.0)
        """What was last said about admission, and when that runs out."""
        self._progress_keys = {topology.progress_key(policy): policy for policy in policies}
        self._report_keys = {topology.report_key(policy): policy for policy in policies}

    def report(self, *, window: int) -> JobReport:
        members = self.members.present
        counted = [member.failures for member in members if member.role is Role.DATAFLOW]
        workers = [member for member in members if member.role is Role.ROLLOUT]
        self._any_completed = self._any_completed or any(worker.completed for worker in workers)
        reports = {name: view.summary(window=window) for name, view in self.policies.items()}
        present = {member.member_id for member in members}
        if len(self._ever_present) + len(present) > _NAMES:
            self._ever_present.clear()
        self._ever_present |= present
        return JobReport(
            policies={name: self._with_ranks(name, report) for name, report in reports.items() if report is not None},
            balance={name: tuple(view.reports) for name, view in self.policies.items()},
            quarantined_tasks=len(self._quarantined),
            anchored_anew=max((one.get(ANCHORED_ANEW, 0) for one in counted), default=0),
            given_up_groups=max((one.get(GIVEN_UP_GROUPS, 0) for one in counted), default=0),
            silent=frozenset(self._ever_present - present),
            silences=self._silences,
            # Before any worker was heard, it is not known what was completed: the watch may have begun a moment ago.
            given_up=() if self._has_completed() or not workers else tuple(self._given_up),
            any_completed=self._has_completed(),
            room=self.room,
            streams_refused=self.refusal,
            durability=self._durability,
        )

    @property
    def room(self) -> Room | None:
        """Whether the job's streams can store more; None when that is not known."""
        return self.disk_shortage or self._room

    def _has_completed(self) -> bool:
        """Whether anything was ever completed. Not a property, as it changes while others wait."""
        return self._any_completed or any(view.steps for view in self.policies.values())

    def _with_ranks(self, policy: str, report: PolicyReport) -> PolicyReport:
        """All ranks say the same, but for the checkpoint, of which the first one knows, and but for the moment."""
        ranks = [member for member in self.members.present if member.role is Role.TRAINER and policy in member.versions]
        if not ranks:
            return report
        saved = [rank.checkpoint_step for rank in ranks if rank.checkpoint_step is not None]
        return replace(
            report,
            tokens_per_second=_rounded(max(rank.tokens_per_second for rank in ranks)),
            skipped_steps=max(rank.failures.get(SKIPPED_STEPS, 0) for rank in ranks),
            unarchived_steps=max(rank.failures.get(UNARCHIVED_STEPS, 0) for rank in ranks),
            checkpoint_step=max(saved, default=None),
        )

    async def run(self) -> None:
        """Until cancelled. The view may lag while the bus is away; the job goes on without it."""
        clock = asyncio.get_running_loop().time
        crashes = 0
        while True:
            began = clock()
            try:
                await self._follow()
            except* BusError as errors:
                _log.warning("watch_interrupted", errors=[str(error) for error in errors.exceptions])
            now = clock()
            again = _RESTARTS.again(crashes, lived_s=now - began, now=now)
            crashes = again.crashes
            await asyncio.sleep(again.wait_s(now))

    async def _follow(self) -> None:
        try:
            await declare_job(self._bus, self._topology, deadline_s=_DEADLINE_S)
        except (TopologyMismatch, BusRefused, StreamFull) as error:
            self.refusal = streams_refusal(error)
            raise
        self.refusal = None
        if self.task_lease_s is not None:
            consumer = self._topology.task_consumer(lease_s=self.task_lease_s)
            await declare_consumer(self._bus, consumer, deadline_s=_DEADLINE_S)
            for stage in self._topology.stages:
                consumer = self._topology.stage_consumer(stage, lease_s=self.task_lease_s)
                await declare_consumer(self._bus, consumer, deadline_s=_DEADLINE_S)
        balance = await KeyValue.declare(self._bus, self._topology.balance, deadline_s=_DEADLINE_S)
        weights = await KeyValue.declare(self._bus, self._topology.weights, deadline_s=_DEADLINE_S)
        members = await KeyValue.declare(self._bus, self._topology.members, deadline_s=_DEADLINE_S)
        quarantine = await KeyValue.declare(self._bus, self._topology.quarantine, deadline_s=_DEADLINE_S)
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._follow_quarantine(quarantine))
            loops.create_task(self._follow_balance(balance))
            loops.create_task(self._follow_weights(weights))
            loops.create_task(self._follow_members(members))
            loops.create_task(self._follow_pulse(members))
            loops.create_task(self._follow_room())
            loops.create_task(self.fleet.run())

    async def _follow_members(self, members: KeyValue) -> None:
        async with KvWatch(members) as watch:
            async for change in watch:
                self.members.note(change)
                if isinstance(change, Entry):
                    self.pulse.hear(change.key, change.revision)

    async def _follow_pulse(self, members: KeyValue) -> None:
        """Nobody is silent while the bucket takes no heartbeats, or nobody can read them."""
        self.pulse.excuse()
        while True:
            try:
                if doubtful := self.pulse.doubtful:
                    # Whoever leads the bucket answers this, and while nobody does nothing is stored in it.
                    await api_call(self._bus, f"STREAM.INFO.{members.spec.stream}", deadline_s=_ANSWER_S)
                for name in doubtful:
                    with contextlib.suppress(BusNotFound):
                        self.pulse.hear(name, (await members.get(name, deadline_s=_ANSWER_S)).revision)
            except BusError:
                self.pulse.excuse()
            silences = self.pulse.look()
            if silences != self._silences:
                self._silences = silences
                self._on_silence()
            await asyncio.sleep(_LOOK_FOR_SILENCE_S)

    async def _follow_room(self) -> None:
        """And has no tasks admitted while there is none. On a full disk this cannot be said; nothing is admitted there
        either, as the ledger cannot be written."""
        while True:
            try:
                usage = await usage_of(self._bus, self._topology, deadline_s=_DEADLINE_S)
                self._durability = Durability(replicas=usage.replicas, sync=self._sync)
                self._room = judged(usage.fillings, before=self._room)
                await self._tell_admission((self.disk_shortage or self._room).shortage)
            except BusError as error:
                _log.warning("room_not_known", error=str(error))
            await asyncio.sleep(_LOOK_AT_ROOM_S)

    async def _tell_admission(self, shortage: str | None) -> None:
        said, until = self._hold
        now = time.time()
        if (said is None) == (shortage is None) and now < until:
            return
        await hold_admission(self._bus, self._topology, shortage, now=now, deadline_s=_DEADLINE_S)
        self._hold = shortage, now + HOLD_S / 3

    async def _follow_balance(self, balance: KeyValue) -> None:
        async with KvWatch(balance) as watch:
            async for change in watch:
                if isinstance(change, Entry):
                    self.note_balance(change)

    def note_balance(self, entry: Entry) -> None:
        try:
            if entry.key in self._progress_keys:
                self._note_step(self.policies[self._progress_keys[entry.key]], decode(entry.value, StepProgress))
            elif entry.key in self._report_keys:
                self._note_report(self.policies[self._report_keys[entry.key]], decode(entry.value, BalanceReport))
            elif ".evaluation." in entry.key:
                self._note_evaluation(decode(entry.value, EvaluationResult))
        except WireError as error:
            _log.warning("balance_unreadable", key=entry.key, reason=str(error))

    def _note_step(self, view: PolicyView, progress: StepProgress) -> None:
        # A watch that begins anew hears the latest step again.
        if not view.steps or progress.step > view.steps[-1].step:
            view.steps.append(progress)
        self._listener(progress)

    def _note_report(self, view: PolicyView, report: BalanceReport) -> None:
        if not view.reports or report.at > view.reports[0].at:
            view.reports.appendleft(report)
        self._listener(report)

    def _note_evaluation(self, result: EvaluationResult) -> None:
        if result.policy in self.policies:
            known = self.policies[result.policy].evaluations
            if result.benchmark not in known and len(known) >= _BENCHMARKS:
                return
            if result.benchmark not in known or known[result.benchmark].version <= result.version:
                known[result.benchmark] = result
            self._listener(result)

    async def _follow_quarantine(self, quarantine: KeyValue) -> None:
        """Why, until something is completed, for a job that is hopeless; then only how many: what went wrong is for
        `trimtab quarantine`, and may be a great deal.
        """
        if not self._has_completed():
            async with KvWatch(quarantine) as watch:
                async for change in watch:
                    if isinstance(change, Entry):
                        self.note_quarantined(change)
                    if self._has_completed():
                        break
        async with KvWatch(quarantine, headers_only=True) as watch:
            async for change in watch:
                if isinstance(change, Entry) and len(self._quarantined) < _NAMES:
                    self._quarantined.add(change.key)

    def note_quarantined(self, entry: Entry) -> None:
        new = entry.key not in self._quarantined and len(self._quarantined) < _NAMES
        if new:
            self._quarantined.add(entry.key)
        # Tasks of the training are numbered; evaluations have names of their own.
        number = _TRAINING_TASK.fullmatch(entry.key)
        if number is None or not new:
            return
        try:
            task = decode(entry.value, QuarantinedTask)
        except WireError as error:
            _log.warning("quarantine_unreadable", key=entry.key, reason=str(error))
            return
        self._given_up.append(
            GivenUp(
                number=int(number[1]), error=task.error, message=task.message, where=task.where, at=task.quarantined_at
            )
        )

    async def _follow_weights(self, weights: KeyValue) -> None:
        async with KvWatch(weights) as watch:
            async for change in watch:
                if isinstance(change, Entry) and change.key in self.policies:
                    self.note_weights(change)

    def note_weights(self, entry: Entry) -> None:
        try:
            pointer = decode(entry.value, WeightPointer)
        except WireError as error:
            _log.warning("weights_unreadable", key=entry.key, reason=str(error))
        else:
            self.policies[entry.key].weights = pointer
            self._listener(pointer)


def streams_refusal(error: BusError) -> str:
    """With the field that it is about, as far as the server says."""
    said = str(error)
    field = getattr(error, "field", "")
    if field == "num_replicas" or "replicas" in said or "peers" in said:
        place = "spec.streams.replicas or placement"
    elif field == "placement" or "placement" in said:
        place = "spec.streams.placement"
    elif field in ("max_bytes", "max_msgs") or isinstance(error, StreamFull) or "storage" in said:
        place = "spec.streams.maxBytes"
    else:
        place = "spec.streams"
    return f"{place}: NATS does not take it: {said}"


def _mean(values: list[float]) -> float:
    """Divided first: the sum of what pods report may be more than a number can be."""
    return fsum(value / len(values) for value in values)


def _rounded(rate: float) -> float:
    """To three digits: the others change all the time and say nothing."""
    return float(f"{rate:.3g}")
