"""Our step against a padded one and TRL's, on the same model and rows, in turns; and whether all compute the same."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.report import Bar, interleaved, note, paired_share
from benchmarks.training.padded_step import PaddedStep
from benchmarks.training.step_data import MICRO_BATCH_ROWS, grpo_policy, max_over_mean
from benchmarks.training.trl_steps import VERSION as TRL_VERSION
from benchmarks.training.trl_steps import trl_steps
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner

ROUNDS = 3
OURS, PADDED, SORTED, TRL = "ours", "padded", "padded_sorted_by_length", "trl"

Gradients = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How far from the padded step's."""

    loss: float | None
    """Absolute, because a loss near zero has no scale; None where it is not told."""
    gradient: float
    """Relative to its norm."""

    def figures(self) -> dict[str, float]:
        found = {"loss": self.loss, "gradient": self.gradient}
        return {name: float(f"{value:.2g}") for name, value in found.items() if value is not None}


def step_totals(rows: Sequence[Row]) -> StepTotals:
    return StepTotals(
        samples=len(rows),
        groups=1,
        episodes=len(rows),
        tokens=sum(len(row.token_ids) for row in rows),
        trained_tokens=sum(row.trained_tokens for row in rows),
    )


def measure_steps(
    rows: Sequence[Row], *, model_path: Path, folder: Path, threads: int
) -> tuple[dict[str, object], dict[str, Bar]]:
    longest = max(len(row.token_ids) for row in rows)
    # As many tokens at once as a padded micro-batch may have, and no more.
    learner = Learner(grpo_policy(micro_batch_tokens=MICRO_BATCH_ROWS * longest), model_path=model_path)
    padded, by_length = PaddedStep(model_path), PaddedStep(model_path)
    totals = step_totals(rows)
    in_order = sorted(rows, key=lambda row: -len(row.token_ids))

    def ours() -> float:
        started = time.perf_counter()
        learner.accumulate(rows)
        learner.update(totals)
        return time.perf_counter() - started

    def theirs(step: PaddedStep, rows: Sequence[Row]) -> float:
        started = time.perf_counter()
        step.accumulate(rows)
        step.update()
        return time.perf_counter() - started

    with trl_steps(rows, model_path=model_path, folder=folder, threads=threads) as peer:
        peer.step()  # the first steps of the others are where gradients are compared
        agreements = _compare(learner, padded, rows, peer.first_gradients())
        theirs(by_length, in_order)
        seconds = interleaved(
            {
                OURS: ours,
                PADDED: lambda: theirs(padded, rows),
                SORTED: lambda: theirs(by_length, in_order),
                TRL: peer.step,
            },
            rounds=ROUNDS,
        )
    note(f"steps: {seconds} s")
    tokens = totals.tokens
    figures: dict[str, object] = {
        "rows": len(rows),
        "tokens": tokens,
        "longest_over_mean_answer": round(max_over_mean(rows), 2),
        "threads": threads,
        "trl_version": TRL_VERSION,
        "trl_called": "GRPOTrainer.train with _generate_and_score_completions replaced by the same completions",
        "tokens_per_s": {name: round(tokens / statistics.median(taken), 1) for name, taken in seconds.items()},
        "seconds": {name: [round(value, 2) for value in taken] for name, taken in seconds.items()},
        "from_padded": {name: found.figures() for name, found in agreements.items()},
        "times_padded_sorted": round(paired_share(seconds[SORTED], seconds[OURS]), 3),
    }
    worst = max(found.gradient for found in agreements.values())
    return figures, {
        "times_padded_step": Bar(paired_share(seconds[PADDED], seconds[OURS]), 2.0),
        "times_trl_step": Bar(paired_share(seconds[TRL], seconds[OURS]), 2.0),
        "gradient_difference": Bar(worst, 1e-3, at_most=True),
    }


def _compare(learner: Learner, padded: PaddedStep, rows: Sequence[Row], from_trl: Gradients) -> dict[str, Agreement]:
    """One step of each from the same weights. TRL does not tell the loss of its whole step, so its gradients speak."""
    loss = padded.accumulate(rows)
    expected = {
        name: tensor.grad.clone() for name, tensor in padded.model.named_parameters() if tensor.grad is not None
    }
    padded.update()
    learner.accumulate(rows)
    found = {
        name: tensor.grad / len(rows) for name, tensor in learner.model.named_parameters() if tensor.grad is not None
    }
    outcome = learner.update(step_totals(rows))
    return {
        OURS: Agreement(loss=abs(outcome.loss - loss), gradient=gradient_distance(found, expected)),
        TRL: Agreement(loss=None, gradient=gradient_distance(from_trl, expected)),
    }


def gradient_distance(found: Gradients, expected: Gradients) -> float:
    """The norm of the difference, relative to that of what was expected."""
    if found.keys() != expected.keys():
        raise ValueError(f"gradients of other parameters: {sorted(found.keys() ^ expected.keys())}")
    off = sum(float((found[name] - expected[name]).double().square().sum()) for name in expected)
    whole = sum(float(gradient.double().square().sum()) for gradient in expected.values())
    return float((off / whole) ** 0.5)
