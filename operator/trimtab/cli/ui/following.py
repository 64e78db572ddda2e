"""Follows what the pods of a running job say of themselves on its bus, as long as somebody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import click
import structlog

from trimtab.cli.job_account import JobUnknown
from trimtab.cli.job_bucket import BusSettings, connected
from trimtab.cli.ui.doing import pod_of
from trimtab.cli.ui.shown import GivenUpTask, Now, Stage
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.members import MemberTable
from trimtab.fabric.restarts import RestartPolicy
from trimtab.fabric.settings import SettingsError
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.quarantine import QuarantinedTask

_log = structlog.get_logger(__name__)
_EVERY_S = 0.25
_CONNECT_S = 20.0
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=0.5, cap_s=10.0), stable_s=30.0)
_POLICIES = 64
_GIVEN_UP = 200
"""That are shown, the newest."""
_MESSAGE = 2000


async def follow(settings: Callable[[], BusSettings], topology: JobTopology, show: Callable[[Now], None]) -> None:
    """Until it is cancelled. An outage of the bus is shown, and tried again."""
    crashes = 0
    while True:
        began = time.monotonic()
        try:
            async with asyncio.timeout(_CONNECT_S):
                opened = await connected(settings(), topology)
            async with opened as bus:
                await _Listener(bus, topology).listen(show)
        except* (BusError, SettingsError, JobUnknown, click.ClickException, OSError) as errors:
            why = "; ".join(sorted({str(error) or type(error).__name__ for error in errors.exceptions}))
            show(Now(live=True, trouble=f"the job's bus does not answer: {why}"))
        now = time.monotonic()
        again = _RESTARTS.again(crashes, lived_s=now - began, now=now)
        crashes = again.crashes
        await asyncio.sleep(again.wait_s(now))


class _Listener:
    def __init__(self, bus: Bus, topology: JobTopology) -> None:
        self._bus = bus
        self._topology = topology
        self._members = MemberTable(ttl_s=topology.member_ttl_s, clock=time.monotonic)
        self._reports: dict[str, BalanceReport] = {}
        self._given_up: dict[str, GivenUpTask] = {}

    async def listen(self, show: Callable[[Now], None]) -> None:
        async with asyncio.TaskGroup() as loops:
            loops.create_task(self._members.follow(KeyValue(self._bus, self._topology.members)))
            loops.create_task(self._follow_reports())
            loops.create_task(self._follow_quarantine())
            loops.create_task(self._keep_showing(show))

    async def _keep_showing(self, show: Callable[[Now], None]) -> None:
        while True:
            show(
                Now(
                    live=True,
                    pods=[pod_of(member) for member in self._members.present],
                    stages=stages_of(list(self._reports.values())),
                    given_up=newest_of(list(self._given_up.values())),
                )
            )
            await asyncio.sleep(_EVERY_S)

    async def _follow_reports(self) -> None:
        async with KvWatch(KeyValue(self._bus, self._topology.balance), keys="*.report") as watch:
            async for change in watch:
                if isinstance(change, Entry) and (change.key in self._reports or len(self._reports) < _POLICIES):
                    try:
                        self._reports[change.key] = decode(change.value, BalanceReport)
                    except WireError as error:
                        _log.warning("balance_unreadable", key=change.key, reason=str(error))

    async def _follow_quarantine(self) -> None:
        async with KvWatch(KeyValue(self._bus, self._topology.quarantine)) as watch:
            async for change in watch:
                if isinstance(change, Entry):
                    try:
                        self._given_up[change.key] = given_up(decode(change.value, QuarantinedTask))
                    except WireError as error:
                        _log.warning("quarantine_unreadable", key=change.key, reason=str(error))
                    while len(self._given_up) > _GIVEN_UP:
                        del self._given_up[next(iter(self._given_up))]


def stages_of(reports: Sequence[BalanceReport]) -> list[Stage]:
    return [
        Stage(
            name=one.stage,
            policy=report.policy,
            per_second=one.done / report.wall_seconds if report.wall_seconds else 0.0,
            waiting=one.waiting,
            failed=one.failed,
        )
        for report in sorted(reports, key=lambda report: report.policy)
        for one in report.stages
    ]


def given_up(task: QuarantinedTask) -> GivenUpTask:
    return GivenUpTask(
        task=task.task_id,
        prompt=task.prompt_id or "",
        error=task.error,
        message=task.message[:_MESSAGE],
        where=task.where[:_MESSAGE],
        worker=task.worker,
        attempts=task.attempts,
        at=task.quarantined_at,
    )


def newest_of(tasks: Sequence[GivenUpTask]) -> list[GivenUpTask]:
    return sorted(tasks, key=lambda task: task.at, reverse=True)[:_GIVEN_UP]
