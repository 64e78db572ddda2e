"""What pods say on a real NATS server, as the page has it: who does what, stages, tasks that were given up."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import msgspec
import pytest

from tests.support.fabric.wire_specimens import SPECIMENS, quarantined
from tests.support.polling import eventually
from trimtab.cli.job_bucket import BusSettings
from trimtab.cli.ui.following import follow
from trimtab.cli.ui.shown import Now
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.balance import BalanceReport, StageLoad
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import MemberHeartbeat, State

_DEADLINE_S = 60.0
_STAGE = StageLoad(stage="judge", waiting=7, done=40, failed=1)


async def test_what_pods_say_is_shown_as_it_changes_and_an_outage_is_told(nats_settings: NatsSettings) -> None:
    topology = JobTopology("default", f"job-{uuid4().hex[:8]}")
    (heartbeat,) = [one for one in SPECIMENS if isinstance(one, MemberHeartbeat)][:1]
    (report,) = [one for one in SPECIMENS if isinstance(one, BalanceReport)][:1]
    report = msgspec.structs.replace(report, stages=(_STAGE,))
    shown: list[Now] = []
    async with await Bus.connect(nats_settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=_DEADLINE_S)
        members, balance, quarantine = (
            KeyValue(bus, bucket) for bucket in (topology.members, topology.balance, topology.quarantine)
        )
        await members.put("one", encode(heartbeat), deadline_s=_DEADLINE_S)
        await balance.put(topology.report_key("solver"), encode(report), deadline_s=_DEADLINE_S)
        for number in range(2):
            task = quarantined(
                task_id=f"t{number}", quarantined_at=1_700_000_000.0 + number, message="no <b>answer</b>"
            )
            await quarantine.put(topology.quarantine_key(task.task_id), encode(task), deadline_s=_DEADLINE_S)
        await quarantine.put("t9", b"no message of ours", deadline_s=_DEADLINE_S)

        settings = BusSettings(nats=nats_settings)
        following = asyncio.create_task(follow(lambda: settings, topology, shown.append))
        await eventually(lambda: bool(shown and shown[-1].pods and shown[-1].stages), timeout_s=10)
        await eventually(lambda: len(shown[-1].given_up) == 2, timeout_s=10)
        now = shown[-1]
        (pod,) = now.pods
        assert (pod.role, pod.doing, pod.capacity) == ("rollout", "held to 12 tasks: its weights are behind", 16)
        (stage,) = now.stages
        assert (stage.name, stage.per_second, stage.waiting, stage.failed) == ("judge", pytest.approx(2.0), 7, 1)
        assert [task.task for task in now.given_up] == ["t1", "t0"], "the newest first"
        assert now.given_up[0].message == "no <b>answer</b>"

        draining = msgspec.structs.replace(heartbeat, state=State.DRAINING, in_flight=1)
        await members.put("one", encode(draining), deadline_s=_DEADLINE_S)
        await eventually(lambda: shown[-1].pods[0].doing == "finishes 1 task, takes no more", timeout_s=10)
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_a_bus_that_is_not_there_is_told_and_tried_again() -> None:
    away = NatsSettings(servers=("nats://127.0.0.1:1",), connect_timeout_s=0.2)
    shown: list[Now] = []
    following = asyncio.create_task(
        follow(lambda: BusSettings(nats=away), JobTopology("default", "gone"), shown.append)
    )
    await eventually(lambda: len(shown) > 1, timeout_s=30)
    assert all("the job's bus does not answer" in now.trouble for now in shown)
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
