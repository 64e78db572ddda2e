"""What running jobs say of themselves on the bus, for their statuses: one connection, one JobWatch per job.

The bus may be away for as long as it likes: jobs are reconciled without it, and keep what was last known of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.streams import delete_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.mint import OPERATOR_INBOX, UserMint
from trimtab.fabric.settings import NatsSettings
from trimtab.kube.resources import Key
from trimtab.operator.job_watch import JobWatch
from trimtab.operator.plan.progress import JobReport

_log = structlog.get_logger(__name__)
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)
_ERASE_DEADLINE_S = 10.0
_DIGITS = 3


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    """What a job has said of itself. It changes at the reporting interval and not in between."""

    report: JobReport = field(default_factory=JobReport)
    tokens_per_second: dict[str, float] = field(default_factory=dict)
    """By pod."""
    versions: dict[str, int] = field(default_factory=dict)
    """By pod, the oldest weights it has of any policy."""


@dataclass
class _Followed:
    watch: JobWatch
    window: int
    task: asyncio.Task[None]
    snapshot: JobSnapshot = field(default_factory=JobSnapshot)


@dataclass(frozen=True)
class _Request:
    policies: tuple[str, ...]
    window: int
    task_lease_s: float


class JobWatches:
    def __init__(self, settings: NatsSettings, *, interval_s: float, mint: UserMint | None = None) -> None:
        """With a mint, the operator makes its own user; else it dials with the settings' one."""
        self._settings, self._credentials = settings, None
        if mint is not None:
            self._settings = settings.model_copy(update={"inbox_prefix": OPERATOR_INBOX})
            self._credentials = MintedCredentials(lambda: mint.operator_user().credentials)
        self._interval_s = interval_s
        self._listeners: list[Callable[[Key], None]] = []
        self._requests: dict[Key, _Request] = {}
        self._new = asyncio.Event()
        self._followed: dict[Key, _Followed] = {}
        self._bus: Bus | None = None
        self._dialling = asyncio.Lock()

    def listen(self, listener: Callable[[Key], None]) -> None:
        """Told of jobs that have said something new, at most once in an interval."""
        self._listeners.append(listener)

    def follow(self, key: Key, *, policies: tuple[str, ...], window: int, task_lease_s: float) -> None:
        """From now on, with news at each interval. That makes the job's streams, too, which its pods may wait for."""
        if key not in self._requests:
            self._new.set()
        self._requests[key] = _Request(policies, window, task_lease_s)

    def stop(self, key: Key) -> None:
        self._requests.pop(key, None)
        followed = self._followed.pop(key, None)
        if followed is not None:
            followed.task.cancel()

    def snapshot(self, key: Key) -> JobSnapshot:
        followed = self._followed.get(key)
        return JobSnapshot() if followed is None else followed.snapshot

    def refresh(self, key: Key) -> None:
        """Before the interval is over, because the job ends and its last step should not go unnoticed."""
        followed = self._followed.get(key)
        if followed is not None:
            self._take(key, followed)

    @property
    def count(self) -> int:
        return len(self._followed)

    async def erase(self, key: Key) -> None:
        """The job's streams and buckets. Raises BusError when that cannot be done now."""
        self.stop(key)
        bus = await self._connected()
        topology = JobTopology(key.namespace, key.name)
        for stream in [spec.name for spec in topology.streams] + [bucket.stream for bucket in topology.buckets]:
            await delete_stream(bus, stream, deadline_s=_ERASE_DEADLINE_S)

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
                if not self._requests:
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
            if self._bus is not None:
                await self._bus.close()

    async def _catch_up(self, *, news: bool) -> None:
        """Begins to follow whom it does not yet, and with `news` hands on what the others have said."""
        bus = await self._connected()
        for key, request in list(self._requests.items()):
            followed = self._followed.get(key)
            if followed is not None and followed.watch.task_lease_s != request.task_lease_s:
                followed.task.cancel()
                followed = None
            if followed is None or followed.task.done():
                self._begin(bus, key, request)
            elif news:
                self._take(key, followed)

    async def _connected(self) -> Bus:
        async with self._dialling:
            if self._bus is None:
                self._bus = await Bus.connect(self._settings, name="trimtab-operator", credentials=self._credentials)
            return self._bus

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
        topology = JobTopology(key.namespace, key.name)
        watch = JobWatch(
            bus, topology, list(request.policies), task_lease_s=request.task_lease_s, history=request.window
        )
        task = asyncio.create_task(watch.run(), name=f"watch of {key.namespace}/{key.name}")
        task.add_done_callback(lambda ended: _say_why(key, ended))
        self._followed[key] = _Followed(watch=watch, window=request.window, task=task)


def _snapshot(followed: _Followed) -> JobSnapshot:
    present = {member.member_id: member for member in followed.watch.members.present}
    return JobSnapshot(
        report=followed.watch.report(window=followed.window),
        # Rounded, because the last digits change all the time and say nothing.
        tokens_per_second={name: float(f"{member.tokens_per_second:.{_DIGITS}g}") for name, member in present.items()},
        versions={name: min(member.versions.values()) for name, member in present.items() if member.versions},
    )


def _say_why(key: Key, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("job_watch_died", namespace=key.namespace, job=key.name, error=repr(error))
