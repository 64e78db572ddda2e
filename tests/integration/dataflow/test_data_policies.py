"""Curators and filters in the real service: what they leave out is not trained, and a restart changes nothing."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.dataflow.books import BATCH
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import eventually, patiently
from trimtab.dataflow.audit.report import audit
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.dataflow.ledger.records import GroupsFiltered, StepGranted, TasksIssued
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.task import Task


def sometimes_equal(task: Task, index: int) -> float:
    """Every second prompt is solved always, the others by every second sample."""
    return 1.0 if int(task.prompt_id.rpartition("-")[2]) % 2 else float(index % 2)


def rewards_of(streams: Streams, group_id: str) -> set[float | None]:
    return {header.reward for header in streams.headers if header.group_id == group_id}


def trained(streams: Streams) -> Sequence[str]:
    return [group for record in streams.records if isinstance(record, StepGranted) for group in record.groups]


async def test_groups_without_advantage_are_left_out_through_any_number_of_kills(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    chance = random.Random(6)
    data = {"filter": {"zeroAdvantage": "Drop"}, "curator": {"greso": {"floorEasy": 0.3, "floorHard": 0.3}}}
    seen: dict[int, set[str]] = {}

    def lifetime() -> float:
        return chance.uniform(0.05, 0.3) if chance.random() < 0.9 else 1.0

    async with simulation(nats_settings, tmp_path, data=data) as sim:
        sim.reward = sometimes_equal
        async with running(sim.work(chance=chance), sim.restarting_service(lifetime)), patiently(120.0):
            steps = await sim.train(steps=range(25), seen=seen)
            while sim.incarnations <= 5:  # a fast machine needs more work to be interrupted as often
                steps = await sim.train(steps=range(steps, steps + 10), seen=seen)
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []
        streams = await read_streams(sim.bus, sim.topology)
        left_out = [
            group for record in streams.records if isinstance(record, GroupsFiltered) for group in record.left_out
        ]
        assert len(trained(streams)) == steps * BATCH // 2
        assert all(len(rewards_of(streams, group)) == 2 for group in trained(streams))
        assert left_out
        assert all(len(rewards_of(streams, group)) == 1 for group in left_out)
        # Prompts that are always solved come up less often than they would.
        issues = [record for record in streams.records if isinstance(record, TasksIssued)]
        places = sum(record.next_position or 0 for record in issues[-1:])
        assert sum(record.count for record in issues) < places


async def test_a_group_may_go_on_with_a_part_of_its_samples(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """Samples of the simulation have 1 and 2 trained tokens: those with one are too short."""
    async with simulation(nats_settings, tmp_path, data={"filter": {"length": {"minTokens": 2}}}) as sim:
        async with sim.service(), running(sim.work()):
            for step in range(3):
                lease = await sim.lease(step, trained=step > 0)
                assert lease is not None
                assert {sample.group_index for sample in lease.samples} == {1}
                assert all(len(group.rewards) == 1 for group in lease.groups)
                assert lease.totals is not None
                assert lease.totals.samples == BATCH // 2
        assert (await audit(sim.bus, sim.topology, data=sim.job.spec.data)).violations == []


async def test_filters_may_come_and_go_with_the_manifest(nats_settings: NatsSettings, tmp_path: Path) -> None:
    async with simulation(nats_settings, tmp_path) as sim, running(sim.work()):
        sim.reward = sometimes_equal
        plain = sim.job

        def with_filter(setting: str) -> None:
            chosen = plain.spec.data.filter.model_copy(update={"zero_advantage": setting})
            data = plain.spec.data.model_copy(update={"filter": chosen})
            sim.job = plain.model_copy(update={"spec": plain.spec.model_copy(update={"data": data})})

        seen: dict[int, set[str]] = {}
        for turn, setting in enumerate(["Keep", "Drop", "Keep", "Drop"]):
            with_filter(setting)
            async with sim.service():
                assert await sim.train(steps=range(4 * turn, 4 * turn + 4), attempt=turn, seen=seen) == 4 * turn + 4
        streams = await read_streams(sim.bus, sim.topology)
        assert len(set(trained(streams))) == len(trained(streams)) == 16 * BATCH // 2
        assert any(isinstance(record, GroupsFiltered) for record in streams.records)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"filter": {"custom": {"entrypoint": "broken:Filter"}}}, "broken:Filter on prompt"),
        ({"curator": {"custom": {"entrypoint": "broken:Curator"}}}, "broken:Curator.admits raised ZeroDivisionError"),
        ({"curator": {"curriculum": {}}}, "difficulty"),
    ],
)
async def test_a_broken_plug_in_ends_the_job_with_its_name(
    nats_settings: NatsSettings, tmp_path: Path, data: dict[str, object], reason: str
) -> None:
    (tmp_path / "broken.py").write_text(
        "class Filter:\n"
        "    def kept(self, group):\n"
        "        return frozenset({99})\n"
        "class Curator:\n"
        "    def admits(self, prompt_id, content, *, draw):\n"
        "        return 1 / 0\n"
        "    def observe(self, outcome): ...\n"
        "    def stepped(self, policy, step): ...\n"
        "    def groups_needed(self, missing):\n"
        "        return missing\n"
        "    def state(self):\n"
        "        return {}\n"
        "    def restore(self, state): ...\n"
    )
    async with simulation(nats_settings, tmp_path, data=data) as sim, running(sim.work()), sim.service() as service:
        await eventually(service.done, timeout_s=20.0)
        error = service.exception()
        assert isinstance(error, JobMisconfigured)
        assert reason in str(error)


async def test_a_curator_that_rests_is_asked_again(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """It admits nothing before it was asked a few times, which a quiet service must go on doing."""
    (tmp_path / "sleepy.py").write_text(
        "from trimtab.dataflow.curators.contract import PassThrough\n"
        "class Sleepy(PassThrough):\n"
        "    asked = 0\n"
        "    def admits(self, prompt_id, content, *, draw):\n"
        "        self.asked += 1\n"
        "        return self.asked > 10_000\n"
    )
    data = {"curator": {"custom": {"entrypoint": "sleepy:Sleepy"}}}
    async with simulation(nats_settings, tmp_path, data=data) as sim, sim.service(), running(sim.work()):
        assert await sim.lease(0) is not None
        assert await empty_records(sim) < 10


async def empty_records(sim: Simulation) -> int:
    records = (await read_streams(sim.bus, sim.topology)).records
    return sum(isinstance(record, TasksIssued) and record.count == 0 for record in records)
