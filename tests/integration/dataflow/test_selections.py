"""Selections in the real service: what its records say of every batch, whatever happens to it meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataflow.books import GROUP
from tests.support.dataflow.jobs import job
from tests.support.dataflow.simulation import Simulation, running, simulation
from tests.support.polling import eventually, patiently
from trimtab.dataflow.audit.streams import Streams, read_streams
from trimtab.dataflow.audit.violations import violations
from trimtab.dataflow.ledger.records import StepDurable, StepGranted, StepTimed, StepTrained, StreamsRouted
from trimtab.dataflow.mixing import MixingSchedule
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease
from trimtab.fabric.wire.trajectory import Trajectory

POLICIES = ("solver", "judge")
BATCH = 8
PLACES = BATCH // GROUP
HALVES = [{"policy": "judge", "streams": [{"policy": "solver"}, {"policy": "judge"}]}]
OF_THE_SOLVER = [{"policy": "judge", "streams": [{"policy": "solver"}]}]


def stream_of(group_id: str) -> str:
    return group_id.partition(".")[2]


def rows_of(granted: StepGranted) -> set[str]:
    return {f"{group}.{index}" for group in (*granted.groups, *granted.replayed) for index in range(GROUP)}


@dataclass
class History:
    """A trainer's batches in the order of the records, with the ages of their groups when they were granted."""

    policy: str
    granted: list[StepGranted] = field(default_factory=list)
    fresh_ages: list[int] = field(default_factory=list)
    replayed_ages: list[int] = field(default_factory=list)

    @property
    def fresh(self) -> list[str]:
        return [group_id for step in self.granted for group_id in step.groups]

    def uses(self) -> Counter[str]:
        return Counter(self.fresh) + Counter(group_id for step in self.granted for group_id in step.replayed)


def histories(streams: Streams) -> dict[str, History]:
    oldest: dict[str, int] = {}
    for header in streams.headers:
        if header.oldest_version is not None:
            oldest[header.group_id] = min(header.oldest_version, oldest.get(header.group_id, header.oldest_version))
    trained: dict[str, int] = defaultdict(int)
    made = {policy: History(policy) for policy in POLICIES}
    for record in streams.records:
        if isinstance(record, StepTimed | StepTrained | StepDurable):
            trained[record.policy] = max(trained[record.policy], record.step + 1)
        if isinstance(record, StepGranted):
            history = made[record.policy]
            history.granted.append(record)
            versions = {**trained, record.policy: record.step}
            for ages, groups in (
                (history.fresh_ages, record.groups),
                (history.replayed_ages, record.replayed),
            ):
                ages += [versions.get(stream_of(group_id), 0) - oldest[group_id] for group_id in groups]
    return made


async def rows(sim: Simulation, lease: BatchLease) -> Mapping[str, Trajectory]:
    """What a rank reads: by sequence, straight from the stream."""
    sequences = [sample.sequence for sample in lease.samples]
    stored = (await get_messages(sim.bus, lease.stream, sequences, deadline_s=60.0)).complete()
    return {sample.trajectory_id: decode(stored[sample.sequence].payload, Trajectory) for sample in lease.samples}


async def kill_as_it_goes(sim: Simulation, seen: Mapping[str, Mapping[int, object]], chance: random.Random) -> None:
    """After every few steps, at some moment soon after one of them."""

    async def live_for(steps: int) -> None:
        enough = sum(map(len, seen.values())) + steps
        async with sim.service() as service:
            await eventually(
                lambda: service.done() or sum(map(len, seen.values())) >= enough,
                timeout_s=60.0,
                interval_s=chance.uniform(0.001, 0.03),
            )

    while True:
        await live_for(chance.randrange(2, 8))


@pytest.mark.slow
async def test_mix_and_replay_hold_through_any_number_of_kills(nats_settings: NatsSettings, tmp_path: Path) -> None:
    chance = random.Random(7)
    replay = {"ratio": 0.5, "maxUses": 3, "maxAge": 6}
    seen: dict[str, dict[int, set[str]]] = {policy: {} for policy in POLICIES}
    data = {"batchSize": BATCH, "mix": HALVES, "replay": replay}
    steps = 30
    async with simulation(nats_settings, tmp_path, policies=2, data=data, maxSteps=steps) as sim:
        async with (
            running(sim.work(chance=chance, policies=POLICIES), kill_as_it_goes(sim, seen, chance)),
            patiently(60.0),
        ):
            trainers = (sim.train(steps=range(99), policy=policy, seen=seen[policy]) for policy in POLICIES)
            assert await asyncio.gather(*trainers) == [steps, steps]
        assert sim.incarnations > 4
        streams = await read_streams(sim.bus, sim.topology)
    assert violations(streams, data=sim.job.spec.data) == []
    for policy, history in histories(streams).items():
        assert {step.step: rows_of(step) for step in history.granted} == seen[policy], "what was trained is recorded"
        assert [step.step for step in history.granted] == list(range(steps))
        assert all(len(step.groups) + len(step.replayed) == PLACES for step in history.granted)
        assert len(set(history.fresh)) == len(history.fresh), "once fresh, and from then on replayed"
        check_replay(history, max_uses=3, max_age=6)
        assert max(history.fresh_ages) <= sim.job.spec.data.max_staleness
    assert set(map(stream_of, histories(streams)["solver"].fresh)) == {"solver"}
    judged = histories(streams)["judge"].fresh
    schedule = MixingSchedule({"solver": 1, "judge": 1}, seed=0)
    assert Counter(map(stream_of, judged)) == schedule.spread(0, len(judged))


def check_replay(history: History, *, max_uses: int, max_age: int) -> None:
    first = {group_id: step.step for step in history.granted for group_id in step.groups}
    for step in history.granted:
        assert len(step.replayed) <= PLACES / 2
        assert all(first[group_id] < step.step for group_id in step.replayed)
        assert len(set(step.replayed)) == len(step.replayed)
    assert max(history.uses().values()) <= max_uses
    assert max(history.replayed_ages) <= max_age
    replayed = sum(len(step.replayed) for step in history.granted)
    assert replayed > 0.8 * PLACES / 2 * len(history.granted), "most steps find enough to replay"


async def test_leases_say_how_often_a_row_was_used_and_it_can_still_be_read(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    before: Counter[str] = Counter()
    data = {"batchSize": BATCH, "replay": {"ratio": 0.5, "maxUses": 4}}
    async with simulation(nats_settings, tmp_path, data=data) as sim, sim.service(), running(sim.work()):
        for step in range(9):
            lease = await sim.lease(step, trained=step > 0)
            assert lease is not None
            assert {sample.trajectory_id: sample.uses for sample in lease.samples} == {
                sample.trajectory_id: before[sample.trajectory_id] for sample in lease.samples
            }
            assert sum(sample.uses > 0 for sample in lease.samples) == (BATCH // 2 if step else 0)
            for trajectory_id, trajectory in (await rows(sim, lease)).items():
                assert trajectory.trajectory_id == trajectory_id
            before.update(sample.trajectory_id for sample in lease.samples)
            sim.versions["solver"] = step + 1
            await sim.acknowledge(step)
    assert max(before.values()) > 2


async def test_a_job_goes_on_with_another_mix(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """The judge takes its own stream, both by halves, the solver's alone with replay, and its own again."""
    phases: list[dict[str, Any]] = [
        {},
        {"mix": HALVES},
        {"mix": OF_THE_SOLVER, "replay": {"ratio": 0.5}},
        {},
    ]
    seen: dict[str, dict[int, set[str]]] = {policy: {} for policy in POLICIES}
    async with simulation(nats_settings, tmp_path, policies=2) as sim, running(sim.work(policies=POLICIES)):
        for number, data in enumerate(phases):
            sim.job = job(sim.job.metadata.name, policies=2, data={"batchSize": BATCH, **data})
            for attempt in (2 * number, 2 * number + 1):  # the second incarnation finds the routes of the first
                async with sim.service():
                    await train_both(sim, steps=3, seen=seen, attempt=attempt)
        streams = await read_streams(sim.bus, sim.topology)
    assert taken_by_the_judge(streams) == [{"judge"}, {"solver", "judge"}, {"solver"}, {"judge"}]
    for history in histories(streams).values():
        assert len(set(history.fresh)) == len(history.fresh)
        assert max(history.fresh_ages) <= sim.job.spec.data.max_staleness
        granted = {step.step: rows_of(step) for step in history.granted}
        assert seen[history.policy].items() <= granted.items()
        assert any(step.replayed for step in history.granted)
        assert not history.granted[-1].replayed
        assert not history.granted[-1].retired, "what was kept for replay went with the first step without"


async def train_both(sim: Simulation, *, steps: int, seen: dict[str, dict[int, set[str]]], attempt: int) -> None:
    """At least so many steps of each. Whoever is first goes on: with its buffers full it would hold up the other."""
    begun = {policy: len(rows) for policy, rows in seen.items()}
    trainers = (
        sim.train(steps=range(begun[policy], 1000), policy=policy, attempt=attempt, seen=seen[policy])
        for policy in POLICIES
    )
    async with running(*trainers):
        await eventually(lambda: all(len(seen[policy]) >= begun[policy] + steps for policy in POLICIES), timeout_s=20.0)


def taken_by_the_judge(streams: Streams) -> list[set[str]]:
    """The streams of its fresh groups, from each change of routes to the next."""
    taken: list[set[str]] = []
    routes: StreamsRouted | None = None
    for record in streams.records:
        if isinstance(record, StreamsRouted):
            # Each incarnation begins with one, changed or not.
            if record != routes:
                taken.append(set())
            routes = record
        elif isinstance(record, StepGranted) and record.policy == "judge":
            taken[-1].update(map(stream_of, record.groups))
    return taken


VARIED = """
from trimtab.dataflow.selection.contract import Choice

class HighestRewards:
    def streams(self, policy):
        return [policy]
    def needs(self, offer, *, steps):
        return {offer.policy: steps * offer.batch - offer.filled + 2}
    def choose(self, offer):
        if offer.waiting(offer.policy) < offer.places + 2:
            return None
        waiting = offer.earliest(offer.policy, offer.waiting(offer.policy))
        best = sorted(waiting, key=lambda group_id: -sum(offer.outcome(group_id).rewards))
        return Choice(fresh=best[: offer.places])

class Greedy(HighestRewards):
    def choose(self, offer):
        return Choice(fresh=offer.earliest(offer.policy, offer.places))
"""


def selected(entrypoint: str) -> dict[str, Any]:
    return {"batchSize": BATCH, "selection": {"entrypoint": entrypoint}}


async def test_a_selection_of_the_users_own_chooses(nats_settings: NatsSettings, tmp_path: Path) -> None:
    """It has two more groups than it needs, and leaves those with the lowest rewards."""
    (tmp_path / "varied.py").write_text(VARIED)
    async with simulation(nats_settings, tmp_path, data=selected("varied:HighestRewards")) as sim:
        sim.reward = lambda task, index: float(task.task_id in ("t1", "t4"))
        async with sim.service(), running(sim.work()):
            await eventually(lambda: complete_groups(sim, 6), timeout_s=10.0)
            lease = await sim.lease(0)
            assert lease is not None
            assert {"t1.solver", "t4.solver"} < {group.group_id for group in lease.groups}
            assert await sim.lease(1, trained=True) is not None


async def complete_groups(sim: Simulation, count: int) -> bool:
    headers = (await read_streams(sim.bus, sim.topology)).headers
    groups: Sequence[int] = list(Counter(header.group_id for header in headers).values())
    return sum(size == GROUP for size in groups) >= count


async def test_a_selection_that_misbehaves_ends_the_job_with_its_name(
    nats_settings: NatsSettings, tmp_path: Path
) -> None:
    (tmp_path / "greedy.py").write_text(VARIED)
    async with (
        simulation(nats_settings, tmp_path, data=selected("greedy:Greedy")) as sim,
        running(sim.work()),
        sim.service() as service,
    ):
        await eventually(service.done, timeout_s=10.0)
        error = service.exception()
        assert isinstance(error, JobMisconfigured)
        assert "data.selection: greedy:Greedy.choose chose" in str(error)
        granted = [one for one in (await read_streams(sim.bus, sim.topology)).records if isinstance(one, StepGranted)]
        assert granted == [], "nothing of it was recorded"
