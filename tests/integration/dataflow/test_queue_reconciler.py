"""What the books have given up leaves the work queue, and what a server has forgotten is sent again: no worker waits
for weights that are lost, and no job for a task that nobody is given.
"""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.support.dataflow.held_out import evaluation
from tests.support.dataflow.lineage import LineageTrainer
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.stages import stage
from tests.support.polling import eventually, patiently, within
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationStarted
from trimtab.dataflow.queue_reconciler import TasksLost
from trimtab.dataflow.work_queue import Queued, queued
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer, declare_job, delete_message
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.task import Task


async def _waiting(sim: Simulation) -> list[Task]:
    return [one.message for one in await queued(sim.bus, sim.topology.tasks.name, Task)]


async def _newest_asked_for(sim: Simulation) -> int:
    return max((task.minimum_versions["solver"] for task in await _waiting(sim)), default=-1)


async def test_tasks_that_ask_for_weights_that_are_lost_leave_the_queue(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    async with simulation(nats_settings, tmp_path) as sim, sim.service():
        trainer = LineageTrainer(sim)
        async with running(sim.work()):
            await trainer.train(8)

        async def asked() -> bool:
            return await _newest_asked_for(sim) >= 6

        await eventually(asked, timeout_s=20.0)
        for _ in range(3):
            trainer.lose_newest_checkpoint()
        await trainer.restart()
        assert trainer.anchored == 1

        async def gone() -> bool:
            return 0 <= await _newest_asked_for(sim) <= 2

        await eventually(gone, timeout_s=20.0)
        async with running(sim.work()), patiently(30.0):
            await trainer.train(4)
        trainer.check()


async def test_a_round_of_evaluation_whose_weights_are_lost_is_given_up(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    held_out = evaluation(tmp_path, everySteps=8)
    async with simulation(nats_settings, tmp_path, evaluation=held_out) as sim, sim.service():
        trainer = LineageTrainer(sim)
        async with running(sim.work()):
            await sim.announce("solver", 0)
            await trainer.train(8)
        await sim.announce("solver", 8)

        async def asked() -> bool:
            return any(task.purpose is Purpose.EVALUATION for task in await _waiting(sim))

        await eventually(asked, timeout_s=20.0)
        for _ in range(3):
            trainer.lose_newest_checkpoint()
        await sim.announce("solver", 2)
        await trainer.restart()

        async def gone() -> bool:
            return not await asked() and 0 <= await _newest_asked_for(sim) <= 2

        await eventually(gone, timeout_s=20.0)
        records = (await read_streams(sim.bus, sim.topology)).records
        (started,) = [one for one in records if isinstance(one, EvaluationStarted) and one.versions["solver"] == 8]
        (ended,) = [one for one in records if isinstance(one, EvaluationEnded) and one.number == started.number]
        assert not ended.scores
        async with running(sim.work()), patiently(30.0):
            await trainer.train(4)
        trainer.check()


async def test_tasks_that_the_server_believes_delivered_after_a_loss_of_power_are_sent_again(tmp_path: Path) -> None:
    """It syncs what a consumer has settled and what a stream has deleted each at its own time."""
    folder = tmp_path / "nats"
    with EmbeddedNats(folder, supervise=False) as server:
        async with simulation(server.settings, tmp_path) as sim:
            await _declare(sim)
            async with sim.service():
                await eventually(lambda: _has_waiting(sim), timeout_s=20.0)
            await asyncio.to_thread(server.stop)
            (stream,) = folder.rglob(sim.topology.tasks.name)
            shutil.copytree(stream / "msgs", tmp_path / "before")
            await asyncio.to_thread(server.start)
            issued = len(await _waiting(sim))
            await _settle_all(sim)
            assert await _waiting(sim) == []
            await asyncio.to_thread(server.stop)
            shutil.rmtree(stream / "msgs")
            shutil.copytree(tmp_path / "before", stream / "msgs")
            await asyncio.to_thread(server.start)
            assert len(await _waiting(sim)) == issued
            trainer = LineageTrainer(sim)
            async with running(sim.work()), sim.service(), patiently(30.0):
                await trainer.restart()
                await trainer.train(4)
            trainer.check()
            assert trainer.anchored == 0, "nothing had to be given up"
            assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []


async def test_a_restart_sends_nothing_again_that_a_worker_has(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with simulation(nats_settings, tmp_path) as sim:
        await _declare(sim)
        async with sim.service():
            await eventually(lambda: _has_waiting(sim), timeout_s=20.0)
        consumer = sim.topology.task_consumer(lease_s=60.0)
        async with (
            await Bus.connect(sim.settings, name="holder") as bus,
            await Puller.open(bus, stream=consumer.stream, consumer=consumer.name) as puller,
        ):
            held = await puller.fetch(batch=2, wait_s=20.0)
            assert held
            before = [one.sequence for one in await queued(sim.bus, sim.topology.tasks.name, Task)]
            async with sim.service():
                await eventually(lambda: _times_reconciled(sim) > 0, timeout_s=20.0)
            assert [one.sequence for one in await queued(sim.bus, sim.topology.tasks.name, Task)] == before


async def test_tasks_that_the_server_loses_while_the_dataflow_lives_are_missed(tmp_path: Path) -> None:
    """The process ends, and the next one brings them again: nobody else knows of them."""
    folder = tmp_path / "nats"
    with EmbeddedNats(folder, supervise=False) as server:
        async with simulation(server.settings, tmp_path) as sim:
            await _declare(sim)
            await asyncio.to_thread(server.stop)
            (stream,) = folder.rglob(sim.topology.tasks.name)
            shutil.copytree(stream, tmp_path / "before")
            await asyncio.to_thread(server.start)
            async with sim.service() as serving:
                await eventually(lambda: _has_waiting(sim), timeout_s=20.0)
                await asyncio.to_thread(server.stop)
                shutil.rmtree(stream)
                shutil.copytree(tmp_path / "before", stream)
                await asyncio.to_thread(server.start)
                assert await _waiting(sim) == []
                with pytest.raises(ExceptionGroup) as ended:
                    await within(serving, 60.0)
                assert ended.group_contains(TasksLost, match="acknowledged")
            trainer = LineageTrainer(sim)
            async with running(sim.work()), sim.service(), patiently(30.0):
                await trainer.restart()
                await trainer.train(4)
            trainer.check()
            assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []


async def test_a_prompt_of_an_evaluation_that_the_server_loses_is_missed(
    own_nats: EmbeddedNats, tmp_path: Path
) -> None:
    held_out = evaluation(tmp_path)
    async with simulation(own_nats.settings, tmp_path, evaluation=held_out) as sim, sim.service() as serving:
        await sim.announce("solver", 0)

        async def asked() -> bool:
            return any(task.purpose is Purpose.EVALUATION for task in await _waiting(sim))

        await eventually(asked, timeout_s=20.0)
        found = await queued(sim.bus, sim.topology.tasks.name, Task)
        lost = next(one for one in found if one.message.purpose is Purpose.EVALUATION)
        await delete_message(sim.bus, sim.topology.tasks.name, lost.sequence, deadline_s=20.0)
        own_nats.kill()
        await asyncio.to_thread(own_nats.start)
        with pytest.raises(ExceptionGroup) as ended:
            await within(serving, 60.0)
        assert ended.group_contains(TasksLost, match=lost.message.task_id)


async def test_a_question_to_a_stage_that_the_server_loses_is_missed(own_nats: EmbeddedNats, tmp_path: Path) -> None:
    stages = (stage("grade", "Reward"),)
    async with simulation(own_nats.settings, tmp_path, stages=stages) as sim:
        await declare_job(sim.bus, sim.topology, deadline_s=60.0)
        async with sim.service() as serving, running(sim.work()):
            asked: list[Queued[StageTask]] = []

            async def has_asked() -> bool:
                asked[:] = await queued(sim.bus, sim.topology.stage_tasks.name, StageTask)
                return bool(asked)

            await eventually(has_asked, timeout_s=20.0)
            await delete_message(sim.bus, sim.topology.stage_tasks.name, asked[0].sequence, deadline_s=20.0)
            own_nats.kill()
            await asyncio.to_thread(own_nats.start)
            with pytest.raises(ExceptionGroup) as ended:
                await within(serving, 60.0)
            assert ended.group_contains(TasksLost, match=asked[0].message.task_id)


async def test_an_outage_that_costs_nothing_ends_no_dataflow(own_nats: EmbeddedNats, tmp_path: Path) -> None:
    async with simulation(own_nats.settings, tmp_path) as sim, sim.service() as serving:
        trainer = LineageTrainer(sim)
        async with running(sim.work()), patiently(60.0):
            for _ in range(3):
                await trainer.train(2)
                own_nats.kill()
                await asyncio.to_thread(own_nats.start)
            await trainer.train(2)
            looked = _times_reconciled(sim)
            own_nats.kill()
            await asyncio.to_thread(own_nats.start)
            await eventually(lambda: _times_reconciled(sim) > looked, timeout_s=30.0)
            await trainer.train(1)
        assert not serving.done()
        trainer.check()


async def _declare(sim: Simulation) -> None:
    await declare_job(sim.bus, sim.topology, deadline_s=60.0)
    await declare_consumer(sim.bus, sim.topology.task_consumer(lease_s=60.0), deadline_s=60.0)


async def _has_waiting(sim: Simulation) -> bool:
    return len(await _waiting(sim)) > 0


def _times_reconciled(sim: Simulation) -> float:
    return sim.metrics.registry.get_sample_value("trimtab_work_queues_reconciled_total") or 0.0


async def _settle_all(sim: Simulation) -> None:
    consumer = sim.topology.task_consumer(lease_s=60.0)
    async with (
        await Bus.connect(sim.settings, name="worker") as bus,
        await Puller.open(bus, stream=consumer.stream, consumer=consumer.name) as puller,
    ):
        while await _has_waiting(sim):
            for delivery in await puller.fetch(batch=64, wait_s=1.0):
                await delivery.ack_confirmed(deadline_s=60.0)
