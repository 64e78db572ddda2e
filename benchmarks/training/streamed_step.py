"""What a step gains when it computes on groups as they are sampled, where answers are of long-tailed lengths.

The trainer is real; of the fleet there is the schedule: so many answers at once, each taking as long as it has tokens,
so that sampling the batch takes as long as computing on it, which is the balance that an autoscaler is after.
"""

from __future__ import annotations

import gc
import heapq
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from benchmarks.report import Bar, interleaved, note, paired_share
from benchmarks.training.workbench import Workbench
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner

STREAMED, WHOLE = "streamed", "whole_batch"
GOALS = {"grpo": 1.3, "m2po": 1.05}
"""By algorithm. Gradients of the first begin with the first group. The default may only look at a group before all are
there, which is a quarter of its work, so that no step can gain more than a seventh."""
_AFTERWARDS = {"grpo": 0.0, "m2po": 0.75}
"""By algorithm, the share of its computing that cannot begin before the last group is there."""
_SLOTS = 16
_ROUNDS = 3
_FIRST_STEPS = 5
"""A GPU's kernels are compiled for several ranges of sizes, each when a portion of that size first comes."""


@dataclass(frozen=True, kw_only=True)
class StreamedSteps:
    algorithm: str
    computing_s: float
    seconds: dict[str, list[float]]
    limit_s: float
    """When a trainer that never idles has computed on the last group, at the earliest."""

    def figures(self) -> dict[str, object]:
        return {
            "computing_s": round(self.computing_s, 3),
            "limit_s": round(self.limit_s, 3),
            **{f"{name}_s": round(statistics.median(taken), 3) for name, taken in self.seconds.items()},
            "gain": round(paired_share(self.seconds[WHOLE], self.seconds[STREAMED]), 3),
        }

    def bars(self) -> dict[str, Bar]:
        gain = paired_share(self.seconds[WHOLE], self.seconds[STREAMED])
        return {f"streaming_gain_{self.algorithm}": Bar(gain, GOALS[self.algorithm])}


def measure_streaming(bench: Workbench, algorithm: str) -> StreamedSteps:
    gc.collect()
    torch.cuda.empty_cache()
    learner = bench.learner({"name": algorithm})
    bench.step(learner)
    computing_s = min(bench.step(learner) for _ in range(_ROUNDS))
    arrivals = scheduled(bench.groups(), slots=_SLOTS, lasting_s=computing_s)
    for _ in range(_FIRST_STEPS if bench.device.type == "cuda" else 0):
        _streamed(bench, learner, arrivals)
    seconds = interleaved(
        {
            STREAMED: lambda: _streamed(bench, learner, arrivals),
            WHOLE: lambda: _whole(bench, learner, arrivals),
        },
        rounds=_ROUNDS,
    )
    note(f"streaming, {algorithm}: {seconds} s, computing alone {computing_s:.3f} s")
    last = sum(len(row.token_ids) for row in arrivals[-1].rows) / sum(len(row.token_ids) for row in bench.rows)
    afterwards = _AFTERWARDS[algorithm]
    return StreamedSteps(
        algorithm=algorithm,
        computing_s=computing_s,
        seconds=seconds,
        limit_s=arrivals[-1].at_s + computing_s * (afterwards + (1 - afterwards) * last),
    )


@dataclass(frozen=True, kw_only=True)
class Arrival:
    at_s: float
    rows: tuple[Row, ...]


def scheduled(groups: Sequence[tuple[Row, ...]], *, slots: int, lasting_s: float) -> list[Arrival]:
    """When each group is whole, the first first. Answers are begun in order, each in the slot that is free first."""
    free = [0.0] * slots
    ends: list[float] = []
    for rows in groups:
        end = 0.0
        for row in rows:
            finished = heapq.heappop(free) + row.trained_tokens
            heapq.heappush(free, finished)
            end = max(end, finished)
        ends.append(end)
    scale = lasting_s / max(ends)
    found = [Arrival(at_s=end * scale, rows=rows) for end, rows in zip(ends, groups, strict=True)]
    return sorted(found, key=lambda arrival: arrival.at_s)


def _streamed(bench: Workbench, learner: Learner, arrivals: Sequence[Arrival]) -> float:
    """All that is there when the trainer is ready for more is one portion, as the loop takes it."""
    began = time.perf_counter()
    left = list(arrivals)
    while left:
        _wait_until(began + left[0].at_s)
        now = time.perf_counter() - began
        there = [arrival for arrival in left if arrival.at_s <= now]
        left = left[len(there) :]
        learner.accumulate([row for arrival in there for row in arrival.rows])
    bench.finish(learner)
    return time.perf_counter() - began


def _whole(bench: Workbench, learner: Learner, arrivals: Sequence[Arrival]) -> float:
    began = time.perf_counter()
    _wait_until(began + arrivals[-1].at_s)
    bench.step(learner)
    return time.perf_counter() - began


def _wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
