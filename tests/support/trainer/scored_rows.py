"""Rows with the logprobs of an engine that has the published weights, and a rank that is given such rows late."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from transformers import LlamaForCausalLM

from tests.support.trainer.samples import policy, rows, train_on
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.spread import whole

SAMPLES = 8


@torch.no_grad()
def sampled(served: LlamaForCausalLM, *, version: int, seed: int, error: float = 0.0) -> list[Row]:
    """As this engine would have drawn them: with its logprobs, all of which are off by `error`."""
    made = []
    for row in rows(SAMPLES, seed=seed):
        logits = served(torch.from_numpy(row.token_ids.astype(np.int64))[None]).logits[0]
        logprobs = np.zeros(len(row.token_ids), dtype=np.float32)
        following = torch.log_softmax(logits.float(), dim=-1).numpy()
        logprobs[1:] = following[np.arange(len(logprobs) - 1), row.token_ids[1:]]
        logprobs = np.where(row.mask, logprobs + error, 0.0).astype(np.float32)
        made.append(replace(row, logprobs=logprobs, versions=np.where(row.mask, version, -1)))
    return made


def late_steps(model: Path, *, rank: int = 0, world_size: int = 1) -> tuple[Learner, float | None]:
    """Three steps from a model in bfloat16, the second with rows of version 0, and the mismatch at the end."""
    learner = Learner(policy(dtype="bfloat16"), model_path=model)
    served = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
    mismatch = None
    for step in range(3):
        learner.weights()
        made = sampled(served, version=0, seed=step) if step == 1 else rows(SAMPLES, seed=step, version=-1)
        mismatch = train_on(learner, made[rank::world_size], of=SAMPLES).measures.logprob_mismatch
    return learner, mismatch


def late_rank(model: Path, target: Path, rank: int) -> None:
    learner, mismatch = late_steps(model, rank=rank, world_size=dist.get_world_size())
    assert mismatch is not None
    weights = {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}
    save_file(weights | {"mismatch": torch.tensor(mismatch)}, target / f"{rank}.safetensors")
