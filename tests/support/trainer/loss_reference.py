"""Losses from their definitions: one token at a time, in Python's float64, with gradients derived by hand."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch

from trimtab.trainer.losses.tokens import LossTokens


@dataclass(kw_only=True)
class Tokens:
    """Sequences of trained tokens, as lists."""

    logprobs: list[list[float]]
    old: list[list[float]]
    advantages: list[float]
    weights: list[list[float]]
    longest_answer: int = 16
    names: list[str] = field(default_factory=list)

    def packed(self, dtype: torch.dtype = torch.float64) -> LossTokens:
        def flat(values: list[list[float]]) -> torch.Tensor:
            return torch.tensor([value for row in values for value in row], dtype=dtype)

        counts = [len(row) for row in self.logprobs]
        return LossTokens(
            logprobs=flat(self.logprobs).requires_grad_(),
            old_logprobs=flat(self.old),
            advantages=torch.tensor(np.repeat(self.advantages, counts), dtype=dtype),
            weights=flat(self.weights),
            sequences=torch.tensor(np.repeat(np.arange(len(counts)), counts), dtype=torch.int64),
            answer_lengths=torch.tensor(counts),
            longest_answer=self.longest_answer,
        )


def tokens(seed: int, *, rows: int = 6, spread: float = 0.5) -> Tokens:
    """Some rows have no token; advantages of both signs and zero; weights as corrections make them."""
    rng = np.random.default_rng(seed)
    counts = [int(rng.integers(0, 9)) for _ in range(rows)]
    old = [[-float(rng.exponential(1.0)) for _ in range(count)] for count in counts]
    return Tokens(
        logprobs=[[value + float(rng.normal(0, spread)) for value in row] for row in old],
        old=old,
        advantages=[0.0 if number == 2 else float(rng.normal()) for number in range(rows)],
        weights=[[float(rng.choice([0.0, 0.3, 1.0, 2.0])) for _ in row] for row in old],
    )


def bounded(log_ratio: float) -> tuple[float, float]:
    """The ratio with its log kept within 20, and its derivative by the log ratio."""
    if abs(log_ratio) > 20:
        return math.exp(math.copysign(20.0, log_ratio)), 0.0
    return math.exp(log_ratio), math.exp(log_ratio)


def clipped(
    ratio: float, slope: float, advantage: float, *, low: float, high: float, dual: float | None
) -> tuple[float, float]:
    """Loss of a token and its derivative: flat where the ratio has gone too far in the advantage's favour."""
    edge = min(max(ratio, 1 - low), 1 + high)
    if -advantage * ratio >= -advantage * edge:
        loss, gradient = -advantage * ratio, -advantage * slope
    else:
        loss, gradient = -advantage * edge, 0.0
    if dual is not None and advantage < 0 and loss > -advantage * dual:
        return -advantage * dual, 0.0
    return loss, gradient


def reference(
    name: str, given: Tokens, *, low: float, high: float, dual: float | None = None
) -> tuple[float, list[float]]:
    """The sum that an algorithm makes of these tokens, and its gradient by their logprobs in order."""
    total = 0.0
    gradients: list[float] = []
    for number, row in enumerate(given.logprobs):
        advantage = given.advantages[number]
        mean_log_ratio = sum(a - b for a, b in zip(row, given.old[number], strict=True)) / max(1, len(row))
        share = {
            "grpo": 1 / max(1, len(row)),
            "gspo": 1 / max(1, len(row)),
            "drgrpo": 1 / given.longest_answer,
        }.get(name, 1.0)
        for place, logprob in enumerate(row):
            weight = given.weights[number][place]
            ratio, slope = bounded(logprob - given.old[number][place])
            if name == "gspo":
                ratio = math.exp(min(mean_log_ratio, 10.0))
                slope = 0.0 if mean_log_ratio > 10.0 else ratio
            if name in ("grpo", "drgrpo", "dapo", "ppo", "gspo", "distill"):
                loss, gradient = clipped(ratio, slope, advantage, low=low, high=high, dual=dual)
            elif name == "cispo":
                held = min(max(ratio, 1 - low), 1 + high)
                loss, gradient = -held * advantage * logprob, -held * advantage
            elif name == "custom":
                held = min(ratio, 1.0) if advantage < 0 else 1.0
                loss, gradient = -held * advantage * logprob, -held * advantage
            elif name == "rloo":
                loss, gradient = -advantage * logprob, -advantage
            else:
                assert name == "m2po"
                loss, gradient = -advantage * ratio, -advantage * slope
            total += share * weight * loss
            gradients.append(share * weight * gradient)
    return total, gradients
