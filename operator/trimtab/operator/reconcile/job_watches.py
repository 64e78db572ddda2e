"""What running jobs say of themselves on the bus, for their statuses: one JobWatch per job.

The bus may be away for as long as it likes: jobs are reconciled without it, and keep what was last known of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnauthenticated
from trimtab.fabric.bus.fleet_note import FleetNote
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.bus.stream_limits import StreamLimits
from trimtab.fabric.bus.streams import delete_stream
from trimtab.fabric.bus.users.registry import ClaimsRefused
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.member import SandboxLayers
from trimtab.kube.resources import Key
from trimtab.operator.evaluation_results import results_on
from trimtab.operator.job_watch import JobWatch
from trimtab.operator.plan.durability import SyncInterval
from trimtab.operator.plan.progress import JobReport
from trimtab.operator.reconcile.job_buses import JobBuses, JobIdentity, NoRoom

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)
_ERASE_DEADLINE_S = 10.0
_READ_DEADLINE_S = 20.0
_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """What a job has said of itself. It changes at the reporting interval and not in between."""

    report: JobReport = field(default_factory=JobReport)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    """By pod."""
    versions: dict[str, int] = field(default_factory=dict)
    """By pod, the oldest weights it has of any policy."""
    sandboxes: dict[str, SandboxLayers] = field(default_factory=dict)
    """By pod, for those that have one."""


@dataclass
class _Followed:
    job: JobIdentity
    bus: Bus
    watch: JobWatch
    window: int
    limits: StreamLimits
    task: asyncio.Task[None]
    snapshot: JobSnapshot = field(default_factory=JobSnapshot)


@dataclass(frozen=True)
class _Request:
    job: JobIdentity
    policies: tuple[str, ...]
    window: int
    task_lease_s: float
    limits: StreamLimits
    dataflow: tuple[tuple[str, str], ...]
    fleet: FleetNote | None


@dataclass(frozen=True, kw_only=True)
class _Trouble:
    """With the connection to one job."""

    failures: int = 0
    until: float = 0.0


class JobWatches:
    def __init__(self, buses: JobBuses, *, interval_s: float, sync: SyncInterval | None = None) -> None:
        """`sync` is how the NATS servers are set up, where that is known."""
        self._buses = buses
        self._sync = sync
        self._interval_s = interval_s
        self._listeners: list[Callable[[Key], None]] = []
        self._requests: dict[Key, _Request] = {}
        self._new = asyncio.Event()
        self._followed: dict[Key, _Followed] = {}
        self._to_admit: dict[str, JobIdentity] = {}
        self._troubles: dict[Key, _Trouble] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._readers: Counter[str] = Counter()
        """By the uid of the job whose results they read: the last one hangs up."""

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Told of jobs that have said something new, at most once in an interval."""
        self._listeners.append(listener)

    def admit(self, job: JobIdentity) -> None:
        """Soon: the job's pods are about to dial."""
        self._to_admit[job.uid] = job
        self._new.set()

    def follow(
        self,
        job: JobIdentity,
        *,
        policies: tuple[str, ...],
        window: int,
        task_lease_s: float,
        limits: StreamLimits = StreamLimits(),  # noqa: B008 - frozen
        dataflow: tuple[tuple[str, str], ...] = (),
        fleet: FleetNote | None = None,
    ) -> None:
        """From now on, with news at each interval. That makes the job's streams, too, which its pods may wait for.
        `dataflow` are the names and uids of pods whose silence is news at once, `fleet` is what to tell the job's
        trackers, where it has some."""
        if job.key not in self._requests:
            self._new.set()
        request = self._requests[job.key] = _Request(job, policies, window, task_lease_s, limits, dataflow, fleet)
        if (followed := self._followed.get(job.key)) is not None:
            _hand_on(request, followed.watch)

    def stop(self, key: Key) -> None:
        request = self._requests.pop(key, None)
        self._troubles.pop(key, None)
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()
        if request is not None:
            closing = asyncio.create_task(self._buses.release(request.job), name=f"release of {key.name}")
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    def snapshot(self, key: Key) -> JobSnapshot:
        followed = self._followed.get(key)
        return JobSnapshot() if followed is None else followed.snapshot

    def refresh(self, key: Key) -> None:
        """Before the interval is over, because the job ends and its last step should not go unnoticed, or because its
        dataflow has fallen silent."""
        followed = self._followed.get(key)
        if followed is not None:
            self._take(key, followed)

    @property
    def count(self) -> int:
        return len(self._followed)

    async def results(self, job: JobIdentity, policies: Collection[str]) -> list[EvaluationResult]:
        """What evaluations have said of a job, which need not run any more. Raises BusError."""
        self._readers[job.uid] += 1
        try:
            async with asyncio.timeout(_READ_DEADLINE_S):
                bus = await self._buses.bus(job)
                return await results_on(bus, job.topology, policies, deadline_s=_READ_DEADLINE_S)
        except TimeoutError:
            raise BusTimeout(f"no answer within {_READ_DEADLINE_S:.3g} s") from None
        finally:
            self._readers[job.uid] -= 1
            if not self._readers[job.uid]:
                del self._readers[job.uid]
                # Nothing is waited for in between: whoever follows it has said so before it asks for its bus.
                if job.key not in self._requests:
                    await self._buses.release(job)

    async def erase(self, job: JobIdentity) -> None:
        """The job's streams and buckets, and then its accounts. Raises BusError when that cannot be done now."""
        self.stop(job.key)
        self._to_admit.pop(job.uid, None)
        await asyncio.gather(*self._closing, return_exceptions=True)
        topology = job.topology
        # One that never had room has no streams, and one whose accounts were forgotten is let in no more.
        with contextlib.suppress(NoRoom, BusUnauthenticated):
            bus = await self._buses.bus(job)
            for stream in [spec.name for spec in topology.streams] + [bucket.stream for bucket in topology.buckets]:
                await delete_stream(bus, stream, deadline_s=_ERASE_DEADLINE_S)
        await self._buses.forget(job)

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        clock = asyncio.get_running_loop().time
        due = clock() + self._interval_s
        try:
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(due):
                        await self._new.wait()
                self._new.clear()
                over = clock() >= due
                if over:
                    due = clock() + self._interval_s
                if not self._requests and not self._to_admit:
                    continue
                try:
                    await self._catch_up(news=over)
                    failures = 0
                except BusError as error:
                    _log.warning("bus_away", error=str(error))
                    await asyncio.sleep(_BACKOFF.delay_s(failures))
                    failures += 1
        finally:
            for key in list(self._followed):
                self.stop(key)
            await asyncio.gather(*self._closing, return_exceptions=True)
            await self._buses.close()

    async def _catch_up(self, *, news: bool) -> None:
        """Begins to follow whom it does not yet, and with `news` hands on what the others have said. What is wrong with
        one job's accounts costs the others nothing."""
        await self._buses.ready()
        for uid, job in list(self._to_admit.items()):
            try:
                await self._buses.admit(job)
            except ClaimsRefused as refusal:
                # It is tried again when the job is followed.
                _log.warning("accounts_refused", namespace=job.key.namespace, job=job.key.name, error=str(refusal))
            self._to_admit.pop(uid, None)
        clock = asyncio.get_running_loop().time
        for key, request in list(self._requests.items()):
            trouble = self._troubles.get(key, _Trouble())
            if clock() < trouble.until:
                continue
            try:
                await self._look_after(key, request, news=news)
                self._troubles.pop(key, None)
            except BusError as error:
                _log.warning("job_bus_away", namespace=key.namespace, job=key.name, error=str(error))
                until = clock() + _BACKOFF.delay_s(trouble.failures)
                self._troubles[key] = _Trouble(failures=trouble.failures + 1, until=until)

    async def _look_after(self, key: Key, request: _Request, *, news: bool) -> None:
        # Also where it is followed already: a server that lost the accounts is told of them again.
        bus = await self._buses.bus(request.job)
        if self._requests.get(key) is not request:
            return  # stopped, or asked for otherwise, while this waited
        followed = self._followed.get(key)
        # Another connection than before: the job was stopped, and its old one is being closed.
        if followed is not None and (followed.watch.task_lease_s, followed.job, followed.limits, followed.bus) != (
            request.task_lease_s,
            request.job,
            request.limits,
            bus,
        ):
            followed.task.cancel()
            followed = None
        if followed is None or followed.task.done():
            self._begin(bus, key, request)
        elif news:
            self._take(key, followed)

    def _take(self, key: Key, followed: _Followed) -> None:
        try:
            snapshot = _snapshot(followed)
        except Exception:  # noqa: BLE001 - what one job says of itself must not end the watch of all others
            _log.exception("job_report_faulted", namespace=key.namespace, job=key.name)
            return
        if snapshot != followed.snapshot:
            followed.snapshot = snapshot
            for listener in self._listeners:
                listener(key)

    def _begin(self, bus: Bus, key: Key, request: _Request) -> None:
        watch = JobWatch(
            bus,
            request.job.topology.limited(request.limits),
            list(request.policies),
            task_lease_s=request.task_lease_s,
            history=request.window,
            sync=self._sync,
            on_silence=lambda: self.refresh(key),
        )
        _hand_on(request, watch)
        task = asyncio.create_task(watch.run(), name=f"watch of {key.namespace}/{key.name}")
        task.add_done_callback(lambda ended: _say_why(key, ended))
        self._followed[key] = _Followed(
            job=request.job, bus=bus, watch=watch, window=request.window, limits=request.limits, task=task
        )


def _hand_on(request: _Request, watch: JobWatch) -> None:
    watch.pulse.expect((escape_token(name), uid) for name, uid in request.dataflow)
    if request.fleet is not None:
        watch.fleet.tell(request.fleet)


def _snapshot(followed: _Followed) -> JobSnapshot:
    present = {member.member_id: member for member in followed.watch.members.present}
    return JobSnapshot(
        report=followed.watch.report(window=followed.window),
        # Rounded, because the last digits change all the time and say nothing.
        tokens_per_second={name: float(f"{member.tokens_per_second:.{_DIGITS}g}") for name, member in present.items()},
        sandboxes={name: member.sandbox for name, member in present.items() if member.sandbox is not None},
        versions={name: min(member.versions.values()) for name, member in present.items() if member.versions},
    )


def _say_why(key: Key, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("job_watch_died", namespace=key.namespace, job=key.name, error=repr(error))
