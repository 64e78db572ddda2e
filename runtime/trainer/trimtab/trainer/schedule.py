"""The learning rate over steps."""

from __future__ import annotations

import math

from trimtab.api.algorithm import Schedule


def rate_factor(schedule: Schedule, step: int) -> float:
    """What the peak rate is multiplied with at a step, counted from 0."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.type == "Constant" or schedule.decay_steps is None:
        return 1.0
    progress = min(1.0, (step - schedule.warmup_steps) / schedule.decay_steps)
    remaining = 1.0 - progress if schedule.type == "Linear" else (1.0 + math.cos(math.pi * progress)) / 2.0
    return schedule.final_fraction + (1.0 - schedule.final_fraction) * remaining
