"""A transformers model that reads packs of sequences: how it is loaded, spread over ranks and proved to compute as it
was meant to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from trimtab.api.lora import Lora
from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch
from trimtab.trainer.network.adapters import attach
from trimtab.trainer.network.attention import IMPLEMENTATION, Packing
from trimtab.trainer.network.blank_model import BlankModel
from trimtab.trainer.network.model_files import ModelFiles, UnsupportedModel

CPU = torch.device("cpu")
PROBE_TOKENS = 8
PROBE_LAYERS = 2
PROBE_TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where and how a network computes."""

    gradient_checkpointing: bool = False
    lora: Lora | None = None
    device: torch.device = CPU
    compute_dtype: torch.dtype | None = None
    """With one the model is spread over the ranks, which all load it together, and each of which reads what it holds
    and no more."""


class PackedNetwork(nn.Module):
    """Gives TokenScores of a PackedBatch. `causal_lm` keeps its own names: they are those of checkpoints and published
    weights.
    """

    def __init__(self, causal_lm: PreTrainedModel) -> None:
        super().__init__()
        self.causal_lm = causal_lm
        self._half_precision_on_gpu = False

    def filled(self, blank: BlankModel, files: ModelFiles, placement: Placement) -> Self:
        """With its weights, of which the masters are float32. Adapters have no values yet."""
        self.causal_lm.set_attn_implementation(IMPLEMENTATION)
        computing = placement.compute_dtype
        if placement.lora is not None:
            attach(self.causal_lm, placement.lora, computing=computing or torch.float32)
        if placement.gradient_checkpointing:
            # transformers has the first name since 5.23, and warns of the second.
            enable = getattr(self.causal_lm, "activation_checkpointing_enable", None)
            enable = enable or self.causal_lm.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        if computing is torch.bfloat16 and placement.device.type == "cuda":
            self._speed_up()
        if computing is not None:
            _spread(self, compute_dtype=computing, device=placement.device)
        blank.fill(files, within=self, device=placement.device)
        return self.train()

    def _speed_up(self) -> None:
        """For half precision on a GPU: layers are compiled once for packs of any lengths."""
        self._half_precision_on_gpu = True
        for layer in self.layers:
            layer.compile(dynamic=True)

    @property
    def layers(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.causal_lm.base_model.layers)

    def hidden(self, batch: PackedBatch) -> torch.Tensor:
        """The states that the model has before each trained token."""
        packing = Packing(torch.tensor(batch.lengths), self._half_precision_on_gpu)
        states: torch.Tensor = self.causal_lm.base_model(
            input_ids=batch.token_ids[None], position_ids=batch.positions[None], use_cache=False, packing=packing
        ).last_hidden_state[0]
        return states[batch.predictors]


def prove(objection: Callable[[], str | None]) -> None:
    """What rank 0 objects to ends all ranks: one that went alone would leave the others waiting for it."""
    objected = None
    if ranks.rank() == 0:
        try:
            objected = objection()
        except UnsupportedModel as error:
            objected = str(error)
    (refused,) = ranks.maxima(objected is not None)
    if refused:
        raise UnsupportedModel(objected or "policies[].model: rank 0 refuses the model, and says why")


def probe_batch(tokens: torch.Tensor) -> PackedBatch:
    """One sequence of which all is trained."""
    zeros = torch.zeros(len(tokens) - 1)
    return PackedBatch(
        token_ids=tokens,
        positions=torch.arange(len(tokens)),
        lengths=(len(tokens),),
        predictors=torch.arange(len(tokens) - 1),
        chosen=tokens[1:],
        sampled_logprobs=zeros,
        versions=zeros.long(),
        advantages=zeros,
        sequences=zeros.long(),
        answer_lengths=torch.tensor([len(tokens) - 1]),
        episodes=(),
    )


def check_layers(causal_lm: PreTrainedModel) -> None:
    """A window is longer than the probe, so it would not be noticed there."""
    kinds = set(getattr(causal_lm.config, "layer_types", None) or ("full_attention",))
    if kinds != {"full_attention"}:
        raise UnsupportedModel(
            f"policies[].model: layers of type {', '.join(sorted(kinds - {'full_attention'}))} are not trained by this"
            " version; take a model whose layers all attend to everything before"
        )


def _spread(network: PackedNetwork, *, compute_dtype: torch.dtype, device: torch.device) -> None:
    """Computes in `compute_dtype`, averages gradients over the ranks in float32. All ranks call it together."""
    mesh = init_device_mesh(device.type, (ranks.world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    # Alone, a rank has nothing to gain from taking a layer apart again between the two passes.
    reshard = ranks.world_size() > 1
    for layer in network.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The root holds embeddings, the last norm and the head, which the backward pass of the chunks needs again.
    fully_shard(network, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
