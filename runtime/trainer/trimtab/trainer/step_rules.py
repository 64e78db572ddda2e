"""What is decided over a whole step, alike on all ranks: no result depends on micro-batches or on where a row is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from trimtab.api.algorithm import Schedule
from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch, Row
from trimtab.trainer.losses.m2po import furthest_kept, harmful_squares

_EPSILON = 1e-6


def normalized_advantages(rows: Sequence[Row]) -> list[Row]:
    """With mean 0 and deviation 1 over all samples of the step. Equal advantages become zeros."""
    count, total = ranks.sums(len(rows), math.fsum(row.advantage for row in rows))
    mean = total / max(1.0, count)
    (squares,) = ranks.sums(math.fsum((row.advantage - mean) ** 2 for row in rows))
    deviation = math.sqrt(squares / max(1.0, count - 1)) + _EPSILON
    return [replace(row, advantage=(row.advantage - mean) / deviation) for row in rows]


def parts(rows: Sequence[Row], count: int) -> list[list[Row]]:
    """This rank's rows of each of `count` equal parts of the step. Keys decide, wherever a row was dealt to."""
    if count == 1:
        return [list(rows)]
    keys = ranks.gathered(torch.tensor([row.key for row in rows], dtype=torch.int64))
    position = {key: number for number, key in enumerate(keys.sort().values.tolist())}
    dealt: list[list[Row]] = [[] for _ in range(count)]
    for row in rows:
        dealt[position[row.key] * count // len(position)].append(row)
    return dealt


def second_moment_limit(packs: Sequence[PackedBatch], logprobs: Sequence[torch.Tensor], *, bound: float) -> float:
    """The largest squared log ratio that M2PO keeps, given what the policy says now to this rank's packs."""
    squares = [
        harmful_squares(now - batch.sampled_logprobs, batch.advantages)
        for batch, now in zip(packs, logprobs, strict=True)
    ]
    return furthest_kept(ranks.gathered(torch.cat(squares)), bound=bound)


def rate_factor(schedule: Schedule, step: int) -> float:
    """What the peak rate is multiplied with at a step, counted from 0."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.type == "Constant" or schedule.decay_steps is None:
        return 1.0
    progress = min(1.0, (step - schedule.warmup_steps) / schedule.decay_steps)
    remaining = 1.0 - progress if schedule.type == "Linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
