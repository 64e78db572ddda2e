"""Adapters of low rank in a network whose own weights stay as they are.

The network keeps the names of its checkpoint, and adapters get those of the PEFT library beside them. Only they have
gradients, so only they are optimised, checkpointed and published.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.functional import linear

from trimtab.api.lora import Lora
from trimtab.api.policy import Policy
from trimtab.trainer.network.model_files import UnsupportedModel
from trimtab.trainer.network.spread import held_here, held_rows
from trimtab.weights.adapters import PREFIX, Adapter


class AdaptedLinear(nn.Module):
    """A linear layer as it was, and what is added to its output."""

    def __init__(self, adapted: nn.Linear, *, rank: int, scale: float) -> None:
        super().__init__()
        self.weight = adapted.weight
        self.bias = adapted.bias
        self.lora_A = _matrix(rank, adapted.in_features, like=adapted.weight)
        self.lora_B = _matrix(adapted.out_features, rank, like=adapted.weight)
        self._scale = scale
        self.off = False

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs = linear(inputs, self.weight, self.bias)
        if self.off:
            return outputs
        added: torch.Tensor = self.lora_B(self.lora_A(inputs))
        return outputs + self._scale * added


def _matrix(rows: int, columns: int, *, like: torch.Tensor) -> nn.Linear:
    """Masters are float32, whatever the model's own weights are. Their values come later."""
    with torch.device("meta"):
        made = nn.Linear(columns, rows, bias=False, dtype=torch.float32)
    return made.to_empty(device=like.device)


def attach(causal_lm: nn.Module, lora: Lora, *, computing: torch.dtype) -> None:
    """Before the network is spread over ranks. From here on nothing but the adapters learns: nothing is added to the
    model's own weights, so they are kept in the type that they are computed with.
    """
    causal_lm.requires_grad_(False)
    for parameter in causal_lm.parameters():
        parameter.data = parameter.data.to(computing)
    found: set[str] = set()
    for path, module in list(causal_lm.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in lora.targets and isinstance(module, nn.Linear):
            adapted = AdaptedLinear(module, rank=lora.rank, scale=lora.scale)
            setattr(causal_lm.get_submodule(parent), name, adapted)
            found.add(name)
    if missing := [target for target in lora.targets if target not in found]:
        raise UnsupportedModel(
            f"policies[].lora.targets: {type(causal_lm).__name__} has no {', '.join(missing)}; leave them out"
        )


@torch.no_grad()
def begin(causal_lm: nn.Module) -> None:
    """First values, by the name of each: the same in every process and however the network is spread. B is zero, so
    that the policy begins as the model.
    """
    for name, parameter in causal_lm.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.endswith("lora_B.weight"):
            parameter.zero_()
            continue
        drawn = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        bound = 1 / math.sqrt(parameter.shape[1])
        values = torch.empty(parameter.shape).uniform_(-bound, bound, generator=drawn)
        rows = held_rows(parameter)
        held_here(parameter).copy_(values[rows.start : rows.stop])


def adapters_of(causal_lm: nn.Module) -> nn.Module:
    """What is trained of the network, and nothing else, under the names of PEFT's files. The parameters are its own."""
    root = nn.Module()
    for name, parameter in causal_lm.named_parameters():
        if parameter.requires_grad:
            node = root
            *steps, last = (PREFIX + name).split(".")
            for step in steps:
                if step not in node._modules:
                    node.add_module(step, nn.Module())
                node = node.get_submodule(step)
            node.register_parameter(last, parameter)
    return root


@contextmanager
def switched_off(network: nn.Module) -> Iterator[None]:
    """Compute as the model that the policy began with."""
    adapted = [module for module in network.modules() if isinstance(module, AdaptedLinear)]
    for module in adapted:
        module.off = True
    try:
        yield
    finally:
        for module in adapted:
            module.off = False


def description_of(policy: Policy) -> Adapter | None:
    """What the policy's published versions say they are; None where they are whole models."""
    lora = policy.lora
    if lora is None:
        return None
    return Adapter(rank=lora.rank, alpha=lora.full_alpha, targets=lora.targets, base=policy.weights.uri)
