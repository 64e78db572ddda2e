"""A step with a KL penalty: with the reference model in the trainer's memory, with its log-probabilities as a column of
a stage, and without any, which is the least that a step can take.
"""

from __future__ import annotations

import gc
import statistics
from dataclasses import dataclass
from functools import partial

import torch

from benchmarks.report import Bar, interleaved, note, paired_share
from benchmarks.training.workbench import REFERENCE, Workbench

INLINE, STAGE, NONE = "inline", "stage", "no_reference"
_ROUNDS = 5
_ALGORITHMS: dict[str, dict[str, object]] = {
    INLINE: {"name": "grpo", "kl": {"coefficient": 1e-3}},
    STAGE: {"name": "grpo", "kl": {"coefficient": 1e-3, "stage": REFERENCE}},
    NONE: {"name": "grpo"},
}


@dataclass(frozen=True, kw_only=True)
class ReferenceSteps:
    seconds: dict[str, list[float]]
    peak_bytes: dict[str, int]
    """Of the GPU, by each way alone; empty without one."""

    def figures(self) -> dict[str, object]:
        medians = {name: round(statistics.median(taken), 4) for name, taken in self.seconds.items()}
        memory = {name: round(peak / 2**30, 1) for name, peak in self.peak_bytes.items()}
        return {"seconds": medians, **({"peak_memory_gib": memory} if memory else {})}

    def bars(self) -> dict[str, Bar]:
        return {
            "inline_reference_over_stage": Bar(paired_share(self.seconds[INLINE], self.seconds[STAGE]), 1.2),
            "stage_over_no_reference": Bar(paired_share(self.seconds[STAGE], self.seconds[NONE]), 1.05, at_most=True),
        }


def measure_reference(bench: Workbench) -> ReferenceSteps:
    """In turns where all fit beside one another; on a GPU, whose memory is measured too, one after the other."""
    if bench.device.type == "cuda":
        return _alone(bench)
    learners = {name: bench.learner(algorithm) for name, algorithm in _ALGORITHMS.items()}
    for learner in learners.values():
        bench.step(learner)
    seconds = interleaved({name: partial(bench.step, learner) for name, learner in learners.items()}, rounds=_ROUNDS)
    note(f"reference: {seconds}")
    return ReferenceSteps(seconds=seconds, peak_bytes={})


def _alone(bench: Workbench) -> ReferenceSteps:
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, int] = {}
    for name, algorithm in _ALGORITHMS.items():
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        learner = bench.learner(algorithm)
        bench.step(learner)
        bench.step(learner)
        seconds[name] = [bench.step(learner) for _ in range(_ROUNDS)]
        peaks[name] = torch.cuda.max_memory_allocated()
        note(f"reference, {name}: {seconds[name]} s, {peaks[name] / 2**30:.1f} GiB")
        del learner
    return ReferenceSteps(seconds=seconds, peak_bytes=peaks)
