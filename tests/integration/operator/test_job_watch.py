"""What a job says of itself, followed through trouble on the bus."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.support.fabric.wire_specimens import quarantined
from tests.support.polling import eventually
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.fleet_note import Decision, FleetNote, read_fleet_note
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import SKIPPED_STEPS, MemberHeartbeat, Role, State
from trimtab.fabric.wire.progress import StepProgress
from trimtab.fabric.wire.quarantine import stored_entry
from trimtab.operator.job_watch import JobWatch


def progress(step: int) -> bytes:
    return encode(
        StepProgress(
            job="job", policy="solver", step=step, reward=0.5, staleness=0.0, max_staleness=0, wait_fraction=0.0,
            samples=1, buffered=0, running=0, dropped=0, at=1.0,
        )
    )  # fmt: skip


async def test_the_watch_survives_a_killed_server_and_nonsense(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "job")
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        bucket = KeyValue(bus, topology.balance)
        watch = JobWatch(bus, topology, ["solver"])
        watching = asyncio.create_task(watch.run())

        def newest() -> int:
            assert not watching.done()
            steps = watch.policies["solver"].steps
            return steps[-1].step if steps else -1

        key = topology.progress_key("solver")
        await bucket.put(key, progress(0), deadline_s=60.0)
        await eventually(lambda: newest() == 0, timeout_s=10.0)
        await bucket.put(key, b"nonsense", deadline_s=60.0)
        await bucket.put(key, progress(1), deadline_s=60.0)
        await eventually(lambda: newest() == 1, timeout_s=10.0)
        own_nats.kill()
        await asyncio.to_thread(own_nats.start)
        await bucket.put(key, progress(2), deadline_s=60.0)
        await eventually(lambda: newest() == 2, timeout_s=20.0)
        assert [one.step for one in watch.policies["solver"].steps] == [0, 1, 2]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def test_the_watch_makes_what_workers_of_tasks_and_stages_may_not(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "staged", stages=("reference", "judge"))
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        watching = asyncio.create_task(JobWatch(bus, topology, ["solver"], task_lease_s=7.0).run())
        wanted = [
            (topology.tasks.name, "rollout"),
            *((topology.stage_tasks.name, f"stage-{s}") for s in topology.stages),
        ]

        async def made() -> bool:
            assert not watching.done()
            try:
                found = [await api_call(bus, f"CONSUMER.INFO.{at}.{one}", deadline_s=10.0) for at, one in wanted]
            except BusNotFound:
                return False
            return all(info["config"]["ack_wait"] == 7_000_000_000 for info in found)

        await eventually(made, timeout_s=30.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def rank(number: int, **told: Any) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id=f"trainer-{number}", job="job", role=Role.TRAINER, state=State.READY, versions={"solver": 4},
        started_at=1.0, sent_at=2.0, **told,
    )  # fmt: skip


async def test_what_ranks_and_the_quarantine_say_is_in_the_report(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "job")
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        watch = JobWatch(bus, topology, ["solver"])
        watching = asyncio.create_task(watch.run())
        await KeyValue(bus, topology.balance).put(topology.progress_key("solver"), progress(3), deadline_s=60.0)
        members = KeyValue(bus, topology.members)
        for beat in (
            rank(0, tokens_per_second=1234.5, checkpoint_step=2, failures={SKIPPED_STEPS: 1}),
            rank(1, tokens_per_second=1230.0),
        ):
            await members.put(beat.member_id, encode(beat), deadline_s=60.0)
        quarantine = KeyValue(bus, topology.quarantine)
        for task in ("a", "b", "a"):
            await quarantine.put(topology.quarantine_key(task), b"for people", deadline_s=60.0)
        await eventually(lambda: watch.report(window=10).quarantined_tasks == 2, timeout_s=10.0)

        def heard() -> tuple[float | None, int, int | None] | None:
            report = watch.report(window=10).policies.get("solver")
            if report is None:
                return None
            return report.tokens_per_second, report.skipped_steps, report.checkpoint_step

        await eventually(lambda: heard() == (1230.0, 1, 2), timeout_s=10.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def decided(at: float, *, wanted: int) -> FleetNote:
    decision = Decision(
        at=at, before=1, after=wanted, reason="TrainerStarving", message="it waits", maintainer="Policy"
    )
    return FleetNote(wanted={"home": wanted}, decisions=(decision,))


async def test_what_is_told_of_the_fleet_outlives_server_and_operator(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "job")
    async with await Bus.connect(own_nats.settings, name="test") as bus:

        async def noted() -> tuple[list[float], dict[str, int]]:
            note = await read_fleet_note(bus, topology, deadline_s=60.0)
            return [one.at for one in note.decisions], note.wanted

        async def says(times: list[float], *, wanted: int) -> None:
            async def as_told() -> bool:
                assert not watching.done()
                return await noted() == (times, {"home": wanted})

            await eventually(as_told, timeout_s=60.0)

        watch = JobWatch(bus, topology, ["solver"])
        watch.fleet.tell(decided(10.0, wanted=2))
        watching = asyncio.create_task(watch.run())
        await KeyValue.declare(bus, topology.balance, deadline_s=60.0)
        await says([10.0], wanted=2)
        own_nats.kill()
        watch.fleet.tell(decided(20.0, wanted=3))
        watch.fleet.tell(decided(30.0, wanted=4))
        await asyncio.to_thread(own_nats.start)
        await says([10.0, 20.0, 30.0], wanted=4)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        another = JobWatch(bus, topology, ["solver"])
        another.fleet.tell(decided(40.0, wanted=5))
        watching = asyncio.create_task(another.run())
        await says([10.0, 20.0, 30.0, 40.0], wanted=5)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def worker(*, completed: int) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id="rollout-0", job="job", role=Role.ROLLOUT, pool="local", state=State.READY, completed=completed,
        started_at=1.0, sent_at=2.0,
    )  # fmt: skip


async def test_why_tasks_were_given_up_is_told_until_something_is_completed(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "job")
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        quarantine = KeyValue(bus, topology.quarantine)
        watch = JobWatch(bus, topology, ["solver"])
        watching = asyncio.create_task(watch.run())

        async def give_up(task_id: str) -> None:
            entry = quarantined(task_id=task_id, message="KeyError: 'answer'", where="my.py, line 7, in run")
            await quarantine.put(topology.quarantine_key(task_id), stored_entry(entry), deadline_s=60.0)

        for task_id in ("t0", "t1", "evaluation-3", "t2"):
            await give_up(task_id)
        await quarantine.put(topology.quarantine_key("t3"), b"nonsense", deadline_s=60.0)
        await eventually(lambda: watch.report(window=10).quarantined_tasks == 5, timeout_s=10.0)
        assert watch.report(window=10).given_up == (), "nobody knows yet what was completed"
        members = KeyValue(bus, topology.members)
        await members.put("rollout-0", encode(worker(completed=0)), deadline_s=60.0)
        await eventually(lambda: bool(watch.report(window=10).given_up), timeout_s=10.0)
        report = watch.report(window=10)
        assert [(one.number, one.where) for one in report.given_up] == [(n, "my.py, line 7, in run") for n in range(3)]
        assert not report.any_completed

        await members.put("rollout-0", encode(worker(completed=8)), deadline_s=60.0)
        await eventually(lambda: watch.report(window=10).any_completed, timeout_s=10.0)
        assert watch.report(window=10).given_up == ()
        for task_id in ("t4", "t5"):
            await give_up(task_id)
        await eventually(lambda: watch.report(window=10).quarantined_tasks == 7, timeout_s=10.0)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
