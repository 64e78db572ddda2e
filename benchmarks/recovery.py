"""How long a dataflow takes to recover a job, by the trajectories that the job has had. `python -m benchmarks.recovery`
lets jobs run through a real JetStream, with records and snapshots as the service writes them, and recovers each.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.report import Bar, logs_to_stderr, note, report
from tests.support.dataflow.simulation import trajectory
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import StepDurable, TasksIssued
from trimtab.dataflow.ledger.task_ids import task_id
from trimtab.dataflow.outcomes import header_of
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.wire.header import MESSAGE_ID, headers
from trimtab.fabric.wire.task import Task

_KEY = JournalKey("of the dataflow of a benchmark and no other")
_GROUP, _BATCH = 8, 256
_DURABLE_EVERY = 10
_DEADLINE_S = 60.0
_LONGEST_S = 20.0
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


async def _run(bus: Bus, topology: JobTopology, trajectories: int) -> None:
    """A job with so many, in steps that become durable ten at a time."""
    await declare_job(bus, topology, deadline_s=_DEADLINE_S)
    journal = Journal(bus, topology, incarnation="first", key=_KEY)
    await journal.recover(ledger := _books())
    books = Bookkeeper(ledger, journal)
    tasks = _BATCH // _GROUP
    stream = topology.trajectories.name
    async with (
        WindowedPublisher(bus, max_messages=512, max_bytes=16 << 20, deadline_s=_DEADLINE_S) as publisher,
        StreamReader(bus, stream=stream, headers_only=True) as arrived,
    ):
        for step in range(-(-trajectories // _BATCH)):
            await books.record(partial(_issued, count=tasks))
            for number in range(step * tasks, (step + 1) * tasks):
                for index in range(_GROUP):
                    one = trajectory(_task(topology, number), "solver", index, version=step)
                    subject = topology.trajectory_subject("solver")
                    said = headers(one)
                    await publisher.publish(subject, b"", message_id=said[MESSAGE_ID], headers=said)
            await publisher.flush()
            while books.ledger.running_groups("solver") > 0:
                for delivery in await arrived.read(batch=512, wait_s=_DEADLINE_S):
                    parsed = header_of(delivery)
                    assert parsed is not None
                    books.arrived(delivery.sequence, *parsed)
            await books.record(lambda ledger: ledger.propose("solver", now=1.0))
            if step % _DURABLE_EVERY == _DURABLE_EVERY - 1:
                await books.record(partial(_durable, step=step))
            await books.compact(dict)


def _issued(ledger: Ledger, *, count: int) -> TasksIssued:
    return TasksIssued(first=ledger.issued, count=count)


def _durable(_: Ledger, *, step: int) -> StepDurable:
    return StepDurable(policy="solver", step=step)


def _task(topology: JobTopology, number: int) -> Task:
    return Task(
        task_id=task_id(number),
        job=topology.job,
        prompt_id=f"train-{number}",
        prompt={},
        group_size=_GROUP,
        seed=number,
        target_versions={},
        minimum_versions={},
        created_at=1.0,
    )


async def _recovery(bus: Bus, topology: JobTopology, *, steps: int) -> float:
    books = _books()
    began = time.perf_counter()
    await Journal(bus, topology, incarnation="second", key=_KEY).recover(books)
    took = time.perf_counter() - began
    assert books.trainers["solver"].next_step == steps, "it is where it was"
    return took


async def _measure(sizes: list[int]) -> dict[str, dict[str, float]]:
    measured: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder, EmbeddedNats(Path(folder)) as server:
        async with await Bus.connect(server.settings, name="recovery") as bus:
            for size in sizes:
                topology = JobTopology("bench", f"j{size}")
                began = time.perf_counter()
                await _run(bus, topology, size)
                ran = time.perf_counter() - began
                took = await _recovery(bus, topology, steps=-(-size // _BATCH))
                kept = await api_call(bus, f"STREAM.INFO.{topology.trajectories.name}", deadline_s=_DEADLINE_S)
                measured[str(size)] = {
                    "recovery_s": round(took, 3),
                    "trajectories_kept": int(kept["state"]["messages"]),
                    "run_s": round(ran, 1),
                }
                note(f"{size} trajectories: {measured[str(size)]}")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().sizes
    logs_to_stderr()
    measured = asyncio.run(_measure(sizes))
    last = measured[str(sizes[-1])]["recovery_s"]
    report("recovery", {"by_trajectories": measured}, {"recovery_s": Bar(last, _LONGEST_S, at_most=True)})


if __name__ == "__main__":
    main()
