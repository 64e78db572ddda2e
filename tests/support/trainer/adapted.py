"""A policy that trains adapters, what it publishes, and a rank of several that train the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from tests.support.trainer.samples import policy, rows, train_on
from trimtab.api.lora import Lora
from trimtab.api.policy import Policy
from trimtab.api.sampling import Sampling
from trimtab.trainer.batch import pack
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import ModelWeights
from trimtab.trainer.network.adapters import begin
from trimtab.trainer.network.packed_network import Placement
from trimtab.trainer.network.policy_network import PolicyNetwork
from trimtab.trainer.network.spread import whole

SAMPLES = 12


def adapting(lora: dict[str, Any] | None = None, *, algorithm: dict[str, Any] | None = None, **trainer: Any) -> Policy:
    plain = policy(**trainer).model_dump(by_alias=True, exclude_none=True)
    plain["algorithm"] |= algorithm or {}
    return Policy.model_validate(plain | {"lora": {"rank": 4} | (lora or {})})


def train(learner: Learner, *, steps: range, rank: int = 0, world_size: int = 1) -> None:
    for step in steps:
        assert not train_on(learner, rows(SAMPLES, seed=step)[rank::world_size], of=SAMPLES).skipped


def publish(learner: Learner, folder: Path) -> Path:
    """What a pool would have in its copy."""
    weights = learner.weights()
    assert isinstance(weights, ModelWeights)
    data = np.empty(weights.layout.data_bytes, dtype=np.uint8)
    for block in weights.layout.blocks:
        weights.read(block, data[block.start : block.end])
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "model.safetensors"
    file.write_bytes(weights.layout.prefix + data.tobytes())
    return file


def adapting_rank(model: Path, target: Path, rank: int) -> None:
    learner = Learner(adapting(), model_path=model)
    train(learner, steps=range(2), rank=rank, world_size=dist.get_world_size())
    weights = {name: whole(tensor.detach()).clone() for name, tensor in learner.model.named_parameters()}
    save_file(weights, target / f"{rank}.safetensors")


def scored(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
    """Logprobs of what comes after the last token, by a transformers model."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0, -1].float(), dim=-1)


def half_precision_rank(model: Path, target: Path, rank: int) -> None:
    """As on a GPU: the model in the type it is computed with, its adapters in float32 beside it, both spread."""
    placement = Placement(lora=Lora(rank=4), compute_dtype=torch.bfloat16)
    network = PolicyNetwork.load(model, sampling=Sampling(), placement=placement)
    begin(network.causal_lm)
    network(pack(rows(4, seed=rank), device=torch.device("cpu"))).logprobs.sum().backward()
    held = {name: whole(parameter.grad) for name, parameter in network.named_parameters() if parameter.grad is not None}
    kinds = {parameter.dtype for parameter in network.parameters() if not parameter.requires_grad}
    assert kinds == {torch.bfloat16}
    save_file({name: gradient.clone() for name, gradient in held.items()}, target / f"{rank}.safetensors")
