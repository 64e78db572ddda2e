"""Two steps of an algorithm on rows from a seed: in this process, or as one of several ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.support.trainer.samples import policy, rows
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import whole
from trimtab.trainer.recipes import policy_recipe

STEPS = 2
SAMPLES = 12
ALGORITHMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("grpo", "drgrpo", "dapo", "gspo", "cispo", "ppo")},
    # With a weight it would be ppo, up to a factor.
    "rloo": {"name": "rloo", "correction": {"type": "None"}},
    "m2po": {"name": "m2po", "m2Threshold": 1.0},
    "grpo-dual": {"name": "grpo", "clip": {"dual": 3.0}},
    "dapo-icepop": {"name": "dapo", "correction": {"type": "Mask", "low": 0.3, "high": 5.0}},
    "grpo-kl-entropy": {"name": "grpo", "kl": {"coefficient": 0.5}, "entropyCoefficient": 0.05},
    "distill": {"name": "distill", "distill": {"stage": "logprobs", "rewardWeight": 0.5}},
    "custom": {"name": "custom", "custom": {"entrypoint": "tests.support.trainer.own_algorithm:Surprised"}},
    "grpo-kl-stage": {"name": "grpo", "kl": {"coefficient": 0.5, "stage": "logprobs"}},
    "grpo-normalized": {"name": "grpo", "normalizeBatchAdvantages": True},
    "ppo-updates": {"name": "ppo", "updatesPerBatch": 3},
    "m2po-updates": {"name": "m2po", "m2Threshold": 1.0, "updatesPerBatch": 2},
    "critic": {"name": "critic", "critic": {"stage": "values"}},
    "critic-updates": {"name": "critic", "critic": {"stage": "values"}, "updatesPerBatch": 3},
}


def policy_with(algorithm: dict[str, Any], **trainer: Any) -> Policy:
    plain = policy(**trainer).model_dump(by_alias=True, exclude_none=True)
    kept = {name: plain["algorithm"][name] for name in ("optimizer", "schedule")}
    return Policy.model_validate(plain | {"algorithm": kept | algorithm})


def step_rows(step: int) -> list[Row]:
    return rows(SAMPLES, seed=step)


def trained(
    model: Path,
    algorithm: str,
    *,
    micro_batch_tokens: int = 64,
    portions: int = 1,
    rows_of: Callable[[int], list[Row]] = step_rows,
) -> dict[str, torch.Tensor]:
    made = policy_with(ALGORITHMS[algorithm], microBatchTokens=micro_batch_tokens)
    learner = Learner(made, model_path=model, recipe=policy_recipe(made, folder=None))
    for step in range(STEPS):
        mine = rows_of(step)
        for portion in range(portions):
            learner.accumulate(mine[portion::portions])
        outcome = learner.update(StepTotals(samples=SAMPLES, groups=1, episodes=SAMPLES, tokens=1, trained_tokens=1))
        assert not outcome.skipped
    return {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}


def dealt(step: int, *, idle_rank: int) -> list[Row]:
    """All ranks deal the same rows; the idle one gets none."""
    workers = [rank for rank in range(dist.get_world_size()) if rank != idle_rank]
    rank = dist.get_rank()
    return step_rows(step)[workers.index(rank) :: len(workers)] if rank in workers else []


def run_rank(model: Path, target: Path, idle_rank: int, rank: int) -> None:
    for name in ALGORITHMS:
        weights = trained(model, name, portions=2, rows_of=lambda step: dealt(step, idle_rank=idle_rank))
        save_file(weights, target / f"{name}.{rank}.safetensors")
