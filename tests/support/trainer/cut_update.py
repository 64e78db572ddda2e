"""Two steps of an algorithm on episodes that are whole or cut into rows, in this process or as one of several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.support.trainer.cut_episodes import leased_step
from tests.support.trainer.samples import policy
from trimtab.api.policy import Policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import whole
from trimtab.trainer.recipes import policy_recipe

STEPS = 2
_TURN = {"credit": {"type": "Turn", "discount": 0.9, "outcomeWeight": 0.5}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in ("grpo", "drgrpo", "dapo", "cispo", "ppo")},
    # The published clip leaves hardly anything of samples that are this far off.
    "gspo": {"name": "gspo", "clip": {"low": 0.9, "high": 5.0}},
    "rloo": {"name": "rloo", "correction": {"type": "None"}},
    "m2po": {"name": "m2po", "m2Threshold": 1.0},
    "grpo-kl-entropy": {"name": "grpo", "kl": {"coefficient": 0.5}, "entropyCoefficient": 0.05},
    "distill": {"name": "distill", "distill": {"stage": "logprobs", "rewardWeight": 0.5}},
    "custom": {"name": "custom", "custom": {"entrypoint": "tests.support.trainer.own_algorithm:Surprised"}},
    "grpo-kl-stage": {"name": "grpo", "kl": {"coefficient": 0.5, "stage": "logprobs"}},
    "grpo-normalized": {"name": "grpo", "normalizeBatchAdvantages": True},
    "dapo-overlong": {"name": "dapo", "overlong": {"bufferTokens": 8, "penalty": 2.0, "maskTruncated": False}},
    "grpo-truncated": {"name": "grpo", "overlong": {"maskTruncated": True}},
    "ppo-updates": {"name": "ppo", "updatesPerBatch": 3},
    "m2po-updates": {"name": "m2po", "m2Threshold": 1.0, "updatesPerBatch": 2},
    "m2po-normalized": {"name": "m2po", "m2Threshold": 1.0, "normalizeBatchAdvantages": True},
    "gspo-updates": {"name": "gspo", "clip": {"low": 0.9, "high": 5.0}, "updatesPerBatch": 2},
    "gspo-truncate-updates": {
        "name": "gspo",
        "clip": {"low": 0.9, "high": 5.0},
        "correction": {"type": "Truncate"},
        "updatesPerBatch": 2,
    },
    **{
        f"{name}-turn": {"name": name, **_TURN}
        for name in ("grpo", "drgrpo", "dapo", "gspo", "cispo", "ppo", "rloo", "m2po")
    },
}


def policy_with(algorithm: dict[str, Any], **trainer: Any) -> Policy:
    """Adam's epsilon is large beside the gradients, so that an update is about their multiple: with a small one every
    rounding would be a step of its own.
    """
    plain = policy(**trainer).model_dump(by_alias=True, exclude_none=True)
    optimizer = {"learningRate": 0.02, "epsilon": 1.0, "maxGradNorm": 1e6}
    return Policy.model_validate(
        plain | {"algorithm": {"optimizer": optimizer} | algorithm, "sampling": {"maxTokens": 12}}
    )


def trained(
    model: Path,
    algorithm: str,
    *,
    cut_seed: int | None,
    micro_batch_tokens: int = 64,
    portions: int = 1,
    rank: int = 0,
    world_size: int = 1,
) -> dict[str, torch.Tensor]:
    """How the weights have changed."""
    made = policy_with(ALGORITHMS[algorithm], microBatchTokens=micro_batch_tokens)
    learner = Learner(made, model_path=model, recipe=policy_recipe(made, folder=None))
    before = _parameters(learner)
    for step in range(STEPS):
        dealt = leased_step(made, step=step, cut_seed=cut_seed, portions=portions, rank=rank, world_size=world_size)
        for rows in dealt.portions:
            learner.accumulate(rows)
        outcome = learner.update(dealt.totals)
        assert not outcome.skipped
    return {name: tensor - before[name] for name, tensor in _parameters(learner).items()}


def _parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}


def run_rank(model: Path, target: Path, rank: int) -> None:
    for name in ALGORITHMS:
        changes = trained(model, name, cut_seed=3, portions=2, rank=rank, world_size=dist.get_world_size())
        save_file(changes, target / f"{name}.{rank}.safetensors")
