"""What a run of an example left on its streams, and what that says: does it learn, and is it really asynchronous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from trimtab.dataflow.audit.history import trained_on
from trimtab.dataflow.audit.streams import read_streams as read_job_streams
from trimtab.dataflow.ledger.records import StepGranted, StepTimed
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.header import TrajectoryHeader

LAST_STEPS = 5
"""Steps that the quickstart's manifest averages the reward over."""
_GOAL = 0.9

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Streams:
    """What a finished job left on its streams."""

    headers: Sequence[TrajectoryHeader]
    grants: Sequence[StepGranted]
    times: Sequence[StepTimed]


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """The same time as disjoint intervals, in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def overlap(first: Sequence[Interval], second: Sequence[Interval]) -> float:
    """Seconds that lie in both."""
    total = 0.0
    others = union(second)
    for start, end in union(first):
        total += sum(max(0.0, min(end, end2) - max(start, start2)) for start2, end2 in others)
    return total


def batches_of(streams: Streams) -> list[list[TrajectoryHeader]]:
    """What each step was trained on."""
    groups = {group_id: group.rows for group_id, group in trained_on(streams.headers).items()}
    # A step may be granted in portions, and the job may end before it has all of the last one.
    batches: dict[int, list[TrajectoryHeader]] = {grant.step: [] for grant in streams.grants if grant.last}
    for grant in streams.grants:
        if grant.step in batches:
            batches[grant.step] += [header for group in grant.groups for header in groups[group]]
    return [batches[step] for step in sorted(batches)]


def rewards_of(batches: Sequence[Sequence[TrajectoryHeader]]) -> list[float]:
    return [sum(header.reward or 0.0 for header in batch) / len(batch) for batch in batches]


def figures(streams: Streams) -> dict[str, Any]:
    batches = batches_of(streams)
    rewards = rewards_of(batches)
    staleness = [max(0, step - (header.oldest_version or 0)) for step, batch in enumerate(batches) for header in batch]
    granted_at = {grant.step: grant.granted_at for grant in streams.grants}
    training = [(time.at - (time.step_seconds - time.wait_seconds) / time.ranks, time.at) for time in streams.times]
    rollout = [(header.started_at, header.finished_at) for header in streams.headers]
    begin, end = min(start for start, _ in training), max(stop for _, stop in training)
    wall = end - begin
    smoothed = [sum(part) / len(part) for part in (rewards[max(0, n - 4) : n + 1] for n in range(len(rewards)))]
    reached = next((n for n, reward in enumerate(smoothed) if reward >= _GOAL), None)
    first_rollout = min(start for start, _ in rollout)
    return {
        "first_reward": round(sum(rewards[:3]) / 3, 4),
        "last_reward": round(sum(rewards[-LAST_STEPS:]) / len(rewards[-LAST_STEPS:]), 4),
        "steps": len(rewards),
        "samples": sum(len(batch) for batch in batches),
        "seconds_to_0.9": None if reached is None else round(granted_at[reached] - first_rollout, 1),
        "samples_to_0.9": None if reached is None else sum(len(batch) for batch in batches[: reached + 1]),
        "samples_per_second": round(sum(len(batch) for batch in batches) / (end - first_rollout), 1),
        "waiting_fraction": round(
            sum(time.wait_seconds for time in streams.times) / sum(time.step_seconds for time in streams.times), 4
        ),
        "staleness_mean": round(sum(staleness) / len(staleness), 3),
        "staleness_max": max(staleness),
        "overlap": round(overlap(training, rollout) / wall, 4),
        "overlap_of_training": round(overlap(training, rollout) / sum(b - a for a, b in union(training)), 4),
        "longest_pause_between_steps_s": round(max(b[0] - a[1] for a, b in pairwise(union(training))), 3),
    }


async def read_streams(folder: Path, topology: JobTopology) -> Streams:
    with EmbeddedNats(folder / "nats") as server:
        async with await Bus.connect(server.settings, name="reader") as bus:
            return await streams_on(bus, topology)


async def streams_on(bus: Bus, topology: JobTopology) -> Streams:
    streams = await read_job_streams(bus, topology)
    return Streams(
        headers=streams.headers,
        grants=[record for record in streams.records if isinstance(record, StepGranted)],
        times=[record for record in streams.records if isinstance(record, StepTimed)],
    )
