"""A stage's worker on a real bus: one column for a group, failures that are retried and then told, nothing lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np
import pytest

from tests.support.polling import eventually
from tests.support.rollout.job import at, line
from tests.support.rollout.staged_job import STAGE, StagedJob, computing, row
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.column import rows_digest
from trimtab.fabric.wire.stage import StageRow, StageTask
from trimtab.rollout.stages.contract import StageContext
from trimtab.rollout.stages.contract import StageRow as Shown


@pytest.fixture
async def job(nats_settings: NatsSettings) -> AsyncIterator[StagedJob]:
    async with await Bus.connect(nats_settings, name="test") as bus:
        yield await StagedJob.open(bus)


class Says:
    """The same of every group."""

    def __init__(self, *said: Any) -> None:
        self._said = said
        self.seen: list[Shown] = []

    async def compute(self, rows: Sequence[Shown], context: StageContext) -> Any:
        self.seen += rows
        return list(self._said)


class Fails:
    """So many times, then says one number for each token."""

    def __init__(self, failures: int, *, how: Any = None) -> None:
        self.left = failures
        self._how = how

    async def compute(self, rows: Sequence[Shown], context: StageContext) -> Any:
        if self.left:
            self.left -= 1
            if self._how is not None:
                await self._how()
            raise ValueError("the judge is out")
        return [np.ones(one.trained_tokens) for one in rows]


async def test_a_group_gets_one_column_with_what_was_said_of_each_row(job: StagedJob) -> None:
    plugin = Says([1.0, 2.0], [3.0])
    task = await job.add(row("g", 0, answer="4."), row("g", 1, answer="5"))
    async with computing(job.worker(plugin)):
        await eventually(job.settled, timeout_s=30.0)
    ((header, column),) = await job.columns()
    assert (column.stage, column.group_id, column.policy) == (STAGE, "g", "solver")
    assert {key: numbers.tolist() for key, numbers in column.by_row.items()} == {"g.0.0": [1.0, 2.0], "g.1.0": [3.0]}
    assert header.rows_digest == rows_digest(one.trajectory_id for one in task.rows)
    assert (header.error, header.rewards, header.worker, header.pool) == (None, None, "w0", "p")
    first = plugin.seen[0]
    assert (first.text, first.answer, first.reward, first.turn_tokens) == ("2+4.", "4.", 0.25, (1, 1))
    assert first.mask.tolist() == [False, False, True, True]


async def test_a_worker_says_how_much_of_it_is_in_use(job: StagedJob) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Waits(Says):
        async def compute(self, rows: Sequence[Shown], context: StageContext) -> Any:
            begun.set()
            await go_on.wait()
            return await super().compute(rows, context)

    await job.add(row("g", 0, answer="4"))
    worker = job.worker(Waits([1.0]))
    async with computing(worker):
        await asyncio.wait_for(begun.wait(), timeout=30.0)
        worker.occupancy.since_last()
        await asyncio.sleep(0.05)
        assert worker.occupancy.since_last() == pytest.approx(1.0)
        go_on.set()
        await eventually(job.settled, timeout_s=30.0)
        worker.occupancy.since_last()
        await asyncio.sleep(0.05)
        assert worker.occupancy.since_last() == 0.0


@pytest.mark.parametrize(
    ("computes", "said", "field", "told"),
    [
        ("Reward", (1, 0.5), "rewards", (1.0, 0.5)),
        ("TurnRewards", ([1, 2], [3]), "turn_rewards", ((1.0, 2.0), (3.0,))),
        ("Filter", (True, False), "keep", (True, False)),
    ],
)
async def test_what_the_dataflow_reads_is_in_the_header(
    job: StagedJob, computes: str, said: tuple[Any, ...], field: str, told: Any
) -> None:
    await job.add(row("g", 0, answer="4."), row("g", 1, answer="5"))
    async with computing(job.worker(Says(*said), computes=computes)):
        await eventually(job.settled, timeout_s=30.0)
    ((header, _),) = await job.columns()
    assert getattr(header, field) == told


async def test_rows_are_asked_about_one_by_one(job: StagedJob) -> None:
    class OneByOne:
        async def compute(self, row: Shown, context: StageContext) -> float:
            return float(row.answer == context.prompt["answer"])

    await job.add(row("g", 0, answer="4"), row("g", 1, answer="5"))
    async with computing(job.worker(OneByOne(), computes="Reward", per="Row")):
        await eventually(job.settled, timeout_s=30.0)
    ((header, _),) = await job.columns()
    assert header.rewards == (1.0, 0.0)


async def test_a_failure_is_tried_again(job: StagedJob) -> None:
    await job.add(row("g", 0, answer="4"))
    async with computing(job.worker(Fails(2))):
        await eventually(job.settled, timeout_s=30.0)
    ((header, column),) = await job.columns()
    assert (header.error, column.values.tolist()) == (None, [1.0])
    assert await job.quarantined() == {}


async def _exits() -> None:
    sys.exit(3)


async def _hangs() -> None:
    await asyncio.sleep(3600.0)


@pytest.mark.parametrize(
    ("plugin", "error"),
    [
        (Fails(9), "workflow-error"),
        (Fails(9, how=_exits), "workflow-exited"),
        (Fails(9, how=_hangs), "episode-timeout"),
        (Says([1.0, 2.0]), "stage-answer"),
        (Says([float("nan")]), "stage-answer"),
        (Says(), "stage-answer"),
    ],
    ids=["raises", "exits", "hangs", "too-many", "nan", "none"],
)
async def test_what_never_works_is_given_up_by_name(job: StagedJob, plugin: Any, error: str) -> None:
    await job.add(row("g", 0, answer="4"))
    async with computing(job.worker(plugin, max_deliveries=2, timeout_s=1)):
        await eventually(job.settled, timeout_s=60.0)
    ((header, column),) = await job.columns()
    assert (header.error, len(column.values)) == (error, 0)
    (entry,) = (await job.quarantined()).values()
    assert (entry.task_id, entry.error, entry.attempts) == (f"g.{STAGE}", error, 2)


async def test_a_row_that_is_not_the_one_that_was_asked_about_is_refused(job: StagedJob) -> None:
    other = await job.add(row("h", 0, answer="4"))
    task = await job.add(
        row("g", 0, answer="4"),
        rows=(StageRow(sequence=other.rows[0].sequence, trajectory_id="g.0.0", reward=0.0),),
    )
    async with computing(job.worker(Says([1.0]))):
        await eventually(job.settled, timeout_s=30.0)
    found = {header.group_id: header.error for header, _ in await job.columns()}
    assert found == {"h": None, "g": "task-refused"}
    assert (await job.quarantined())[task.task_id].attempts == 1


async def test_a_group_that_is_gone_is_settled_in_silence(job: StagedJob) -> None:
    task: StageTask = await job.add(row("g", 0, answer="4"))
    subject = f"STREAM.PURGE.{job.topology.trajectories.name}"
    await api_call(job.bus, subject, {"seq": task.rows[0].sequence + 1}, deadline_s=60.0)
    async with computing(job.worker(Says([1.0]))):
        await eventually(job.settled, timeout_s=30.0)
    assert (await job.columns(), await job.quarantined()) == ([], {})


async def test_a_worker_that_drains_hands_back_without_using_up_attempts(
    job: StagedJob, nats_settings: NatsSettings
) -> None:
    await job.add(row("g", 0, answer="4"))
    for number in range(3):
        begun = asyncio.Event()

        async def hang(begun: asyncio.Event = begun) -> None:
            begun.set()
            await asyncio.sleep(3600.0)

        async with await Bus.connect(nats_settings, name=f"w{number}") as own:
            worker = job.worker(Fails(9, how=hang), max_deliveries=2, timeout_s=600, grace_s=0.0, bus=own)
            async with computing(worker) as stopping:
                await asyncio.wait_for(begun.wait(), 30.0)
                stopping.set()
    async with computing(job.worker(Fails(1), max_deliveries=2)):
        await eventually(job.settled, timeout_s=30.0)
    ((header, _),) = await job.columns()
    assert header.error is None


async def test_it_waits_for_weights_that_are_new_enough(job: StagedJob) -> None:
    solver = line(served=0, announced=2)
    await job.add(row("g", 0, answer="4"), minimum_versions={"solver": 2})
    async with computing(job.worker(Says([1.0]), lines={"solver": solver}, lease_s=0.2)):
        await asyncio.sleep(1.0)
        assert await job.columns() == []
        solver.served.settle(at(2))
        await eventually(job.settled, timeout_s=30.0)
    assert len(await job.columns()) == 1
