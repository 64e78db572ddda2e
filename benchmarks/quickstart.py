"""Does the product learn, how fast, and is it really asynchronous: the quickstart from random weights, for three seeds.

`python -m benchmarks.quickstart` runs `trimtab run` as a person would and then reads the job's streams.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from benchmarks.report import Bar, logs_to_stderr, note, report
from trimtab.dataflow.audit import reading
from trimtab.dataflow.ledger.records import StepGranted, StepTimed
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.header import TrajectoryHeader

_QUICKSTART = Path(__file__).parent.parent / "examples" / "quickstart"
_GOAL = 0.9
_WINDOW = 10
_TIMEOUT_S = 400

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


def figures(streams: Streams) -> dict[str, Any]:
    groups: dict[str, list[TrajectoryHeader]] = {}
    for header in streams.headers:
        groups.setdefault(header.group_id, []).append(header)
    batches: list[list[TrajectoryHeader]] = [[] for grant in streams.grants if grant.last]
    for grant in streams.grants:  # a step may be granted in portions
        batches[grant.step] += [header for group in grant.groups for header in groups[group]]
    rewards = [sum(header.reward or 0.0 for header in batch) / len(batch) for batch in batches]
    staleness = [max(0, step - (header.oldest_version or 0)) for step, batch in enumerate(batches) for header in batch]
    granted_at = {grant.step: grant.granted_at for grant in streams.grants}
    training = [(time.at - (time.step_seconds - time.wait_seconds), time.at) for time in streams.times]
    rollout = [(header.started_at, header.finished_at) for header in streams.headers]
    begin, end = min(start for start, _ in training), max(stop for _, stop in training)
    wall = end - begin
    smoothed = [sum(part) / len(part) for part in (rewards[max(0, n - 4) : n + 1] for n in range(len(rewards)))]
    reached = next((n for n, reward in enumerate(smoothed) if reward >= _GOAL), None)
    first_rollout = min(start for start, _ in rollout)
    return {
        "first_reward": round(sum(rewards[:3]) / 3, 4),
        "last_reward": round(sum(rewards[-_WINDOW:]) / len(rewards[-_WINDOW:]), 4),
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
        bus = await Bus.connect(server.settings, name="benchmark")
        streams = await reading.read_streams(bus, topology)
        await bus.close()
    return Streams(
        headers=streams.headers,
        grants=[record for record in streams.records if isinstance(record, StepGranted)],
        times=[record for record in streams.records if isinstance(record, StepTimed)],
    )


def run_seed(seed: int, folder: Path) -> dict[str, Any]:
    subprocess.run(
        [sys.executable, str(_QUICKSTART / "make.py"), "--folder", str(folder), "--seed", str(seed)],
        check=True,
        capture_output=True,
    )
    job = yaml.safe_load((_QUICKSTART / "job.yaml").read_text())
    job["spec"]["data"]["seed"] = seed
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    started = time.monotonic()
    arguments = [sys.executable, "-m", "trimtab.cli.main", "run", str(folder / "job.yaml")]
    completed = subprocess.run(arguments, stdout=sys.stderr, stderr=sys.stderr, timeout=_TIMEOUT_S)
    seconds = time.monotonic() - started
    if completed.returncode != 0:
        raise SystemExit(f"seed {seed}: trimtab run ended with {completed.returncode}")
    name = job["metadata"]["name"]
    streams = asyncio.run(read_streams(folder / ".trimtab" / name, JobTopology("default", name)))
    return {"seed": seed, "seconds": round(seconds, 1), **figures(streams)}


def main() -> None:
    logs_to_stderr()
    results = []
    for seed in (0, 1, 2):
        with tempfile.TemporaryDirectory() as folder:
            note(f"seed {seed}")
            results.append(run_seed(seed, Path(folder)))
            note(str(results[-1]))
    report(
        "quickstart",
        {"seeds": results},
        {
            "last_reward_worst_seed": Bar(min(result["last_reward"] for result in results), 0.9),
            "seconds_worst_seed": Bar(max(result["seconds"] for result in results), 180.0, at_most=True),
            "overlap_worst_seed": Bar(min(result["overlap"] for result in results), 0.5),
        },
    )


if __name__ == "__main__":
    main()
