"""Evaluation beside training, on a real NATS: rounds by version, results per benchmark, nothing held out in a batch."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataflow.held_out import PROMPTS, evaluation
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.dataflow.stage_worker import Faults, StageWorker, reward
from tests.support.dataflow.stages import stage
from tests.support.dataflow.storm.copies import Copies
from tests.support.polling import eventually
from trimtab.dataflow.audit.report import audit, judged
from trimtab.dataflow.audit.streams import read_streams
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.records import EvaluationEnded, EvaluationStarted
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.fabric.wire.lease import AWAITS_EVALUATION, BatchNotReady
from trimtab.fabric.wire.purpose import Purpose
from trimtab.fabric.wire.stage import StageTask
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Trajectory


async def result(sim: Simulation, benchmark: str, *, version: int) -> EvaluationResult | None:
    key = sim.topology.evaluation_key("solver", benchmark, version=version)
    try:
        return decode((await KeyValue(sim.bus, sim.topology.balance).get(key)).value, EvaluationResult)
    except BusNotFound:
        return None


async def _evaluated(sim: Simulation, version: int) -> bool:
    return None not in [await result(sim, name, version=version) for name in ("easy", "hard")]


def graded(seen: list[Task]) -> Any:
    """Rewards that tell the benchmarks apart, and a note of every task for them."""

    def reward(task: Task, index: int) -> float:
        if task.purpose is Purpose.EVALUATION and index == 0:
            seen.append(task)
        return {"easy": 0.75, "hard": 0.25}.get(task.benchmark or "", index / 10.0)

    return reward


async def test_every_so_many_versions_the_benchmarks_are_run_and_scored(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    seen: list[Task] = []
    async with simulation(nats_settings, tmp_path, evaluation=evaluation(tmp_path), maxSteps=4) as sim:
        sim.reward = graded(seen)
        async with sim.service(), running(sim.work()):
            early = await sim.ask(0)
            assert isinstance(early, BatchNotReady)
            assert early.reason == AWAITS_EVALUATION, "no version was there to evaluate"
            for version in range(5):
                await sim.announce("solver", version)
                if version % 2 == 0:
                    await eventually(partial(_evaluated, sim, version), timeout_s=20.0)
                await sim.train(steps=range(version, version + 1), attempt=version, seen={})
            easy, hard = await result(sim, "easy", version=4), await result(sim, "hard", version=4)
            told = await sim.best_versions()
        assert easy is not None
        assert hard is not None
        assert (easy.score, easy.episodes, easy.failed) == (0.75, 15, 0)
        assert (hard.score, hard.episodes) == (0.25, PROMPTS)
        assert (easy.best_version, easy.best_score) == (4, 0.75), "of equal ones the newest"
        assert {(one.benchmark, one.version, one.score) for one in told.best} == {("easy", 4, 0.75), ("hard", 4, 0.25)}
        assert told.evaluating is None
        assert {task.benchmark: task.sampling["temperature"] for task in seen} == {"easy": 0.0, "hard": 0.5}
        assert {task.minimum_versions["solver"] for task in seen} == {0, 2, 4}
        assert all(task.group_size == (3 if task.benchmark == "easy" else 1) for task in seen)
        streams = await read_streams(sim.bus, sim.topology)
        rounds = [record for record in streams.records if isinstance(record, EvaluationStarted)]
        assert [record.versions["solver"] for record in rounds] == [0, 2, 4]
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []


@pytest.mark.slow
async def test_a_round_survives_the_service_and_unreliable_workers(nats_settings: NatsSettings, tmp_path: Path) -> None:
    lives = random.Random(3)
    held_out = evaluation(tmp_path, prompts=400, limit=400)
    async with simulation(nats_settings, tmp_path, evaluation=held_out) as sim:
        sim.reward = graded([])
        async with running(
            sim.restarting_service(lambda: lives.uniform(0.1, 0.4)),
            sim.work(chance=random.Random(1)),
            sim.work(chance=random.Random(2)),
        ):
            await eventually(lambda: sim.incarnations > 1, timeout_s=20.0)
            await sim.announce("solver", 0)
            begun = sim.incarnations
            await eventually(partial(_evaluated, sim, 0), timeout_s=60.0)
        streams = await read_streams(sim.bus, sim.topology)
        (ended,) = [record for record in streams.records if isinstance(record, EvaluationEnded)]
        easy = next(score for score in ended.scores if score.benchmark == "easy")
        assert easy.episodes + easy.failed == 3 * 400, "each sample counts once, whatever came twice"
        assert easy.score == 0.75
        assert sim.incarnations > begun


@pytest.mark.parametrize(
    "goal", [{"maxSteps": 2}, {"targetReward": 0.01, "autoscaling": {"windowSteps": 2}}], ids=["steps", "reward"]
)
async def test_a_job_ends_after_the_evaluation_of_what_it_learnt(
    nats_settings: NatsSettings, tmp_path: Path, goal: dict[str, Any]
) -> None:
    async with simulation(nats_settings, tmp_path, evaluation=evaluation(tmp_path, atStart=False), **goal) as sim:
        sim.reward = graded([])
        async with sim.service(), running(sim.work()):
            assert await sim.train(steps=range(2), seen={}) == 2
            answer = await sim.ask(2, trained=True)
            assert isinstance(answer, BatchNotReady), "version 2 is not even published"
            await sim.announce("solver", 2)
            assert await sim.lease(2, trained=True) is None
            await eventually(partial(_evaluated, sim, 2), timeout_s=60.0)


class Grader(StageWorker):
    """Notes the prompts that it is told."""

    def __init__(self, *arguments: Any, told: dict[str, Any], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._told = told

    async def _rows(self, task: StageTask) -> list[Trajectory]:
        self._told[task.group_id] = task.prompt
        return await super()._rows(task)


async def test_held_out_prompts_are_scored_by_the_stage_that_rewards_training_through_restarts(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    lives = random.Random(5)
    stages = (stage("sift", "Filter"), stage("grade", "Reward", needs=["sift"]))
    told: dict[str, Any] = {}
    small = partial(Journal, compact_after_bytes=600)
    held_out = evaluation(tmp_path, prompts=60, limit=60)
    async with simulation(nats_settings, tmp_path, evaluation=held_out, stages=stages, make_journal=small) as sim:
        sim.reward = graded([])
        copies = Copies(sim.topology)
        await copies.begin(sim.bus)
        faults = Faults(dies_before=10, dies_after=10, repeats=15, lies=10)
        grading = Grader(sim.bus, sim.topology, stages[1], chance=random.Random(4), faults=faults, told=told)
        sifting = StageWorker(sim.bus, sim.topology, stages[0], chance=random.Random(6))
        async with running(
            sim.restarting_service(lambda: lives.uniform(0.3, 0.9)),
            sim.work(),
            sifting.run(),
        ):
            await eventually(lambda: sim.incarnations > 1, timeout_s=20.0)
            await sim.announce("solver", 0)
            begun = sim.incarnations
            # Nothing is scored before the service has begun anew.
            await eventually(lambda: sim.incarnations > begun, timeout_s=20.0)
            async with running(grading.run()):
                await eventually(partial(_evaluated, sim, 0), timeout_s=60.0)
        for name, samples in (("easy", 3), ("hard", 1)):
            scored = await result(sim, name, version=0)
            assert scored is not None
            assert (scored.episodes, scored.failed) == (60 * samples, 0)
            worth = [
                reward("grade", f"e0.{name}.{number}.solver.{index}")
                for number in range(60)
                for index in range(samples)
            ]
            assert scored.score == pytest.approx(sum(worth) / len(worth)), "not what the workflow says"
        assert {group: prompt for group, prompt in told.items() if group.startswith("e")} == {
            f"e0.{name}.{number}.solver": {"prompt": f"{name} {number}"}
            for name in ("easy", "hard")
            for number in range(60)
        }
        await copies.catch_up(sim.bus)
        streams = await read_streams(
            sim.bus, sim.topology, ledger=copies.ledger, trajectories=copies.trajectories, columns=copies.columns
        )
        assert judged(streams, data=sim.job.spec.data, stages=sim.stages).violations == []
