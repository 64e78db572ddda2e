"""What a trajectory costs the ledger alone: time when a million wait, and memory."""

from __future__ import annotations

import gc
import json
import multiprocessing
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

from benchmarks.report import note
from benchmarks.trajectories.payloads import GROUP_SIZE, POLICY, Writer
from trimtab.api.data import Replay as ReplaySettings
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import StepDurable
from trimtab.dataflow.selection.fresh import Fresh
from trimtab.dataflow.selection.replay import Replay
from trimtab.fabric.wire.header import MESSAGE_ID, TRAJECTORY, TrajectoryHeader, headers, parse_headers

_BATCH = 1000
_CHUNK = 10_000
_TOKENS = 16
_MAX_STALENESS = 8
_WINDOW_STEPS = 10
_DEADLINE_S = 240.0

Arrived = tuple[int, str, TrajectoryHeader]


@dataclass(frozen=True, kw_only=True)
class LedgerCost:
    queued: int
    cpu_s_per_100k: float


def measure_ledger(*, queued: int, total: int, parts: int = 1) -> LedgerCost:
    """Queue so many rows, of episodes with `parts` each, and grant all of them, again until `total` have passed, in a
    process that ends with its memory.
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        cost = pool.submit(_measure, queued=queued, total=total, parts=parts).result(_DEADLINE_S)
    note(f"{cost}")
    return cost


def _measure(*, queued: int, total: int, parts: int) -> LedgerCost:
    spent = 0.0
    for _ in range(0, total, queued):
        ledger = empty_ledger(batch_size=_BATCH)
        spent += sum(queue(ledger, chunk) for chunk in _chunks(queued, parts=parts))
        spent += grant_all(ledger)
    return LedgerCost(queued=queued, cpu_s_per_100k=spent / total * 1e5)


def empty_ledger(*, batch_size: int, replay: ReplaySettings | None = None) -> Ledger:
    fresh = Fresh({POLICY: {POLICY: 1.0}}, seed=0)
    return Ledger(
        {POLICY: 1},
        selection=fresh if replay is None else Replay(replay, fresh),
        group_size=GROUP_SIZE,
        batch_sizes={POLICY: batch_size},
        max_staleness=_MAX_STALENESS,
        window_steps=_WINDOW_STEPS,
    )


def queue(ledger: Ledger, arrived: list[Arrived]) -> float:
    """Seconds of processor time."""
    began = time.process_time()
    for sequence, trajectory_id, header in arrived:
        ledger.arrived(sequence, trajectory_id, header)
    return time.process_time() - began


def grant_all(ledger: Ledger) -> float:
    """Grants step after step, each durable at once, until too few are left. Seconds of processor time."""
    began = time.process_time()
    while (record := ledger.propose(POLICY, now=0.0)) is not None:
        ledger.apply(record)
        ledger.apply(StepDurable(policy=POLICY, step=record.step))
    return time.process_time() - began


def arrivals(first: int, count: int, *, batch_size: int, parts: int = 1) -> Iterator[Arrived]:
    """Headers as they come off the wire: each with strings of its own, which is what they weigh."""
    writer = Writer("job", tokens=_TOKENS, batch_size=batch_size, seed=0, parts=parts)
    names = TrajectoryHeader.__struct_fields__
    specimen = writer.trajectory(0)
    fields = json.loads(headers(specimen)[TRAJECTORY])
    place = {name: names.index(name) for name in names}
    for number in range(first, first + count):
        episode, part = divmod(number, parts)
        group, index = divmod(episode, GROUP_SIZE)
        fields[place["task_id"]] = f"t{group}"
        fields[place["prompt_id"]] = f"prompt-{group}"
        fields[place["group_id"]] = f"t{group}.{POLICY}"
        fields[place["group_index"]] = index
        fields[place["part"]] = part
        fields[place["oldest_version"]] = fields[place["newest_version"]] = episode // batch_size
        sent = {MESSAGE_ID: f"t{group}.{POLICY}.{index}.{part}.{specimen.run}", TRAJECTORY: json.dumps(fields)}
        yield number + 1, *parse_headers(sent)


def _chunks(count: int, *, parts: int) -> Iterator[list[Arrived]]:
    for first in range(0, count, _CHUNK):
        yield list(arrivals(first, min(_CHUNK, count - first), batch_size=_BATCH, parts=parts))


def bytes_per_trajectory(fill: Callable[[], object], *, trajectories: int) -> float:
    """What `fill` returns takes in memory for each trajectory in it: of a ledger that holds so many queued ones, or so
    many that can be replayed."""
    gc.collect()
    tracemalloc.start()
    try:
        held = fill()
        gc.collect()
        size, _ = tracemalloc.get_traced_memory()
        del held
    finally:
        tracemalloc.stop()
    return size / trajectories


def queued_ledger(trajectories: int) -> Ledger:
    ledger = empty_ledger(batch_size=_BATCH)
    for arrived in arrivals(0, trajectories, batch_size=_BATCH):
        ledger.arrived(*arrived)
    return ledger


def replaying_ledger(trajectories: int) -> Ledger:
    """All of them were trained on once, are durable, and wait for another use."""
    settings = ReplaySettings(ratio=1e-6, size=trajectories, max_age=1_000_000)
    ledger = empty_ledger(batch_size=_BATCH, replay=settings)
    for arrived in arrivals(0, trajectories, batch_size=_BATCH):
        ledger.arrived(*arrived)
    grant_all(ledger)
    held = sum(len(used.group.samples) for used in ledger.trainers[POLICY].pool)
    if held != trajectories or ledger.trainers[POLICY].buffered:
        raise RuntimeError(f"{held} of {trajectories} trajectories are in the pool")
    return ledger
