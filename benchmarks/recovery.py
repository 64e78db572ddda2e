"""How long a dataflow takes to recover a job, by the trajectories that the job has had. `python -m benchmarks.recovery`
lets jobs run through a real JetStream, with records and snapshots as the service writes them, and recovers each.

Of a long job only the end goes through the server: the rows and records before it are deleted by a snapshot.
Its books are kept for every single row nevertheless, by the ledger itself.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.report import Bar, logs_to_stderr, note, report
from tests.support.dataflow.simulation import trajectory
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.bookkeeper import EPISODES_PER_SNAPSHOT, Bookkeeper
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsDropped, StepDurable, StepGranted, TasksIssued
from trimtab.dataflow.ledger.snapshot import take_snapshot
from trimtab.dataflow.ledger.task_ids import task_id
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.header import TrajectoryHeader, headers, parse_headers
from trimtab.fabric.wire.task import Task

_KEY = JournalKey("of the dataflow of a benchmark and no other")
_GROUP, _BATCH = 8, 256
_DURABLE_EVERY = 10
_DEADLINE_S = 60.0
_LOOK_S = 0.002
_THROUGH_THE_SERVER = 4 * EPISODES_PER_SNAPSHOT
"""Of a job's trajectories, so many of the last at least."""
_EXAMPLE = 10**12
"""A number of a task that nothing else in its rows looks like."""
LONGEST_S = 20.0
"""That a recovery may take, however long the job has run."""


def _books() -> Ledger:
    return Ledger(
        {"solver": 1},
        selection=Fresh({"solver": {"solver": 1.0}}, seed=0),
        group_size=_GROUP,
        batch_sizes={"solver": _BATCH},
        max_staleness=8,
        window_steps=10,
    )


async def _run(bus: Bus, topology: JobTopology, trajectories: int) -> int:
    """A job with so many, in steps that become durable ten at a time, and then until just before the next snapshot,
    when there is most to read. The number of its steps."""
    await declare_job(bus, topology, deadline_s=_DEADLINE_S)
    journal = Journal(bus, topology, incarnation="first", key=_KEY)
    await journal.recover(ledger := _books())
    step = await _lived(bus, journal, ledger, topology, rows=max(0, trajectories - _THROUGH_THE_SERVER))
    books = Bookkeeper(ledger, journal)
    subject = topology.trajectory_subject("solver")
    sequence, unread = ledger.last_sequence, 0
    while step * _BATCH < trajectories or unread < EPISODES_PER_SNAPSHOT - 2 * _BATCH < trajectories:
        await books.record(_issued)
        said = _Rows(topology, version=step)
        for number in _tasks_of(step):
            for one in said.of(number):
                await bus.send(subject, b"", headers=one)
                sequence += 1
                # Each has the number by which it will be in the stream: what is lost on the way is missed below.
                books.arrived(sequence, *parse_headers(one))
        await _are_stored(bus, topology, sequence)
        await books.record(_proposed)
        if _ends_durable(step):
            await books.record(partial(_durable, step=step))
        unread = 0 if await books.compact(dict) else unread + _BATCH
        step += 1
    return step


async def _lived(bus: Bus, journal: Journal, ledger: Ledger, topology: JobTopology, *, rows: int) -> int:
    """The beginning of a job, until a snapshot has deleted all of it. The number of its steps."""
    steps = rows // (_BATCH * _DURABLE_EVERY) * _DURABLE_EVERY
    if not steps:
        return 0
    for step in range(steps):
        ledger.apply(_issued(ledger))
        example = _Rows(topology, version=step).parsed
        for number in _tasks_of(step):
            task, group = task_id(number), example[0][1].group_id.replace(task_id(_EXAMPLE), task_id(number))
            for trajectory_id, header in example:
                own = trajectory_id.replace(task_id(_EXAMPLE), task)
                its = msgspec.structs.replace(header, task_id=task, prompt_id=task, group_id=group)
                ledger.arrived(ledger.last_sequence + 1, own, its)
        granted = _proposed(ledger)
        assert isinstance(granted, StepGranted)
        ledger.apply(granted)
        if _ends_durable(step):
            ledger.apply(_durable(ledger, step=step))
    assert ledger.last_sequence == steps * _BATCH
    # An empty stream goes on with the number that is not deleted.
    first = {"seq": ledger.last_sequence + 1}
    await api_call(bus, f"STREAM.PURGE.{topology.trajectories.name}", first, deadline_s=_DEADLINE_S)
    snapshot = take_snapshot(ledger, learnt={})
    assert snapshot.floor == first["seq"], "no row from before is needed"
    await journal.compact(snapshot)
    return steps


async def _state(bus: Bus, topology: JobTopology) -> dict[str, int]:
    """Of the stream of rows."""
    info = await api_call(bus, f"STREAM.INFO.{topology.trajectories.name}", deadline_s=_DEADLINE_S)
    return dict(info["state"])


async def _are_stored(bus: Bus, topology: JobTopology, rows: int) -> None:
    async with asyncio.timeout(_DEADLINE_S):
        while True:
            if (await _state(bus, topology))["last_seq"] == rows:
                return
            await asyncio.sleep(_LOOK_S)


class _Rows:
    """Headers of the rows of tasks. Those of one version differ in the task's number: making each from nothing would
    take longer than all else."""

    def __init__(self, topology: JobTopology, *, version: int) -> None:
        task = Task(
            task_id=task_id(_EXAMPLE),
            job=topology.job,
            prompt_id=task_id(_EXAMPLE),
            prompt={},
            group_size=_GROUP,
            seed=0,
            target_versions={},
            minimum_versions={},
            created_at=1.0,
        )
        rows = [headers(trajectory(task, "solver", index, version=version)) for index in range(_GROUP)]
        self._texts = [json.dumps(one) for one in rows]

    @property
    def parsed(self) -> list[tuple[str, TrajectoryHeader]]:
        """As the dataflow reads them, of the task that nothing else looks like."""
        return [parse_headers(json.loads(text)) for text in self._texts]

    def of(self, number: int) -> Iterator[dict[str, str]]:
        for text in self._texts:
            one: dict[str, str] = json.loads(text.replace(task_id(_EXAMPLE), task_id(number)))
            yield one


def _tasks_of(step: int) -> range:
    count = _BATCH // _GROUP
    return range(step * count, (step + 1) * count)


def _ends_durable(step: int) -> bool:
    return step % _DURABLE_EVERY == _DURABLE_EVERY - 1


def _issued(ledger: Ledger) -> TasksIssued:
    return TasksIssued(first=ledger.issued, count=_BATCH // _GROUP)


def _proposed(ledger: Ledger) -> StepGranted | GroupsDropped | None:
    return ledger.propose("solver", now=1.0)


def _durable(_: Ledger, *, step: int) -> StepDurable:
    return StepDurable(policy="solver", step=step)


async def _recovery(bus: Bus, topology: JobTopology, *, steps: int) -> float:
    books = _books()
    began = time.perf_counter()
    await Journal(bus, topology, incarnation="second", key=_KEY).recover(books)
    took = time.perf_counter() - began
    assert books.trainers["solver"].next_step == steps, "it is where it was"
    return took


async def measured(sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """By the number of trajectories, what its recovery took."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, EmbeddedNats(Path(folder)) as server:
        async with await Bus.connect(server.settings, name="recovery") as bus:
            for size in sizes:
                topology = JobTopology("bench", f"j{size}")
                began = time.perf_counter()
                steps = await _run(bus, topology, size)
                ran = time.perf_counter() - began
                took = await _recovery(bus, topology, steps=steps)
                kept = (await _state(bus, topology))["messages"]
                found[str(size)] = {
                    "recovery_s": round(took, 3),
                    "trajectories_kept": kept,
                    "run_s": round(ran, 1),
                }
                note(f"{size} trajectories: {found[str(size)]}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=(10_000, 100_000, 1_000_000, 10_000_000))
    sizes = parser.parse_args().sizes
    logs_to_stderr()
    found = asyncio.run(measured(sizes))
    longest = max(one["recovery_s"] for one in found.values())
    report("recovery", {"by_trajectories": found}, {"recovery_s": Bar(longest, LONGEST_S, at_most=True)})


if __name__ == "__main__":
    main()
