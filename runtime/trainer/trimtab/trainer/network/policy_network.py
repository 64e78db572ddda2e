"""A transformers causal LM as the loss wants it: a pack of sequences in, logprobs of its trained tokens out."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from trimtab.api.lora import Lora
from trimtab.api.sampling import Sampling
from trimtab.trainer import ranks
from trimtab.trainer.batch import PackedBatch
from trimtab.trainer.network.adapters import attach
from trimtab.trainer.network.attention import IMPLEMENTATION, Packing
from trimtab.trainer.network.blank_model import BlankModel
from trimtab.trainer.network.chosen_logprobs import TokenScores, chosen_logprobs
from trimtab.trainer.network.model_files import ModelFiles, UnsupportedModel
from trimtab.trainer.network.truncation import Truncation

_CPU = torch.device("cpu")
_PROBE_TOKENS = 8
_PROBE_LAYERS = 2
_PROBE_TOLERANCE = 1e-3


class PolicyNetwork(nn.Module):
    """`causal_lm` keeps its own names: they are those of checkpoints and published weights."""

    def __init__(self, causal_lm: PreTrainedModel, *, sampling: Sampling, with_entropy: bool) -> None:
        """`sampling` is how tokens are drawn from it: probabilities are those of that distribution."""
        super().__init__()
        self.causal_lm = causal_lm
        self._temperature = sampling.temperature
        self._truncation = Truncation.of(sampling)
        self._with_entropy = with_entropy
        self._half_precision_on_gpu = False

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        sampling: Sampling,
        with_entropy: bool = False,
        gradient_checkpointing: bool = False,
        lora: Lora | None = None,
        device: torch.device = _CPU,
        compute_dtype: torch.dtype | None = None,
    ) -> PolicyNetwork:
        """Master weights are float32. With a type to compute in the model is spread over the ranks, which all call this
        together, and each of which reads what it holds and no more. Adapters have no values yet.
        """
        blank = BlankModel.of(path)
        files = ModelFiles(path)
        _check_family(blank.causal_lm)
        cls._prove(path, files, sampling=sampling)
        blank.causal_lm.set_attn_implementation(IMPLEMENTATION)
        if lora is not None:
            attach(blank.causal_lm, lora, computing=compute_dtype or torch.float32)
        network = cls(blank.causal_lm, sampling=sampling, with_entropy=with_entropy)
        if gradient_checkpointing:
            # transformers has the first name since 5.23, and warns of the second.
            enable = getattr(network.causal_lm, "activation_checkpointing_enable", None)
            enable = enable or network.causal_lm.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        if compute_dtype is torch.bfloat16 and device.type == "cuda":
            network._speed_up()
        if compute_dtype is not None:
            _spread(network, compute_dtype=compute_dtype, device=device)
        blank.fill(files, within=network, device=device)
        return network.train()

    def _speed_up(self) -> None:
        """For half precision on a GPU: layers are compiled once for packs of any lengths."""
        self._half_precision_on_gpu = True
        for layer in self.layers:
            layer.compile(dynamic=True)

    @property
    def layers(self) -> nn.ModuleList:
        return cast(nn.ModuleList, self.causal_lm.base_model.layers)

    @property
    def _head(self) -> torch.Tensor:
        return cast(torch.Tensor, self.causal_lm.lm_head.weight)

    def forward(self, batch: PackedBatch) -> TokenScores:
        return self._scores(batch, self._truncation)

    def _scores(self, batch: PackedBatch, truncation: Truncation) -> TokenScores:
        packing = Packing(torch.tensor(batch.lengths), self._half_precision_on_gpu)
        hidden = self.causal_lm.base_model(
            input_ids=batch.token_ids[None], position_ids=batch.positions[None], use_cache=False, packing=packing
        ).last_hidden_state[0]
        return chosen_logprobs(
            hidden[batch.predictors],
            self._head,
            batch.chosen,
            temperature=self._temperature,
            with_entropy=self._with_entropy,
            truncation=truncation,
        )

    @classmethod
    def _prove(cls, path: Path, files: ModelFiles, *, sampling: Sampling) -> None:
        """What rank 0 objects to ends all ranks: one that went alone would leave the others waiting for it."""
        objection = None
        if ranks.rank() == 0:
            try:
                objection = cls._objection(path, files, sampling=sampling)
            except UnsupportedModel as error:
                objection = str(error)
        (refused,) = ranks.maxima(objection is not None)
        if refused:
            raise UnsupportedModel(objection or "policies[].model: rank 0 refuses the model, and says why")

    @classmethod
    @torch.no_grad()
    def _objection(cls, path: Path, files: ModelFiles, *, sampling: Sampling) -> str | None:
        """Models differ in what they do to logits, and some attend to less than all that came before. One that our way
        does not compute exactly is refused here, and not found out by its rewards. Its first layers tell: the others
        are of the same kind, and all of them together need not fit into this machine.
        """
        blank = BlankModel.of(path)
        probe = cls(blank.causal_lm, sampling=sampling, with_entropy=False).eval()
        blank.causal_lm.base_model.layers = probe.layers[:_PROBE_LAYERS]
        blank.fill(files, within=probe, device=_CPU)
        tokens = (torch.arange(_PROBE_TOKENS) * 7919 + 1) % probe._head.shape[0]
        logits = probe.causal_lm(input_ids=tokens[None], use_cache=False).logits[0, :-1].float() / probe._temperature
        expected = torch.log_softmax(logits, dim=-1).gather(-1, tokens[1:, None])[:, 0]
        probe.causal_lm.set_attn_implementation(IMPLEMENTATION)
        zeros = torch.zeros(_PROBE_TOKENS - 1)
        ours = probe._scores(
            PackedBatch(
                token_ids=tokens,
                positions=torch.arange(_PROBE_TOKENS),
                lengths=(_PROBE_TOKENS,),
                predictors=torch.arange(_PROBE_TOKENS - 1),
                chosen=tokens[1:],
                sampled_logprobs=zeros,
                versions=zeros.long(),
                advantages=zeros,
                sequences=zeros.long(),
                answer_lengths=torch.tensor([_PROBE_TOKENS - 1]),
                episodes=(),
            ),
            Truncation(),
        ).logprobs
        if torch.allclose(ours, expected, atol=_PROBE_TOLERANCE, rtol=_PROBE_TOLERANCE):
            return None
        return (
            f"policies[].model: {type(probe.causal_lm).__name__} is not computed exactly by this trainer"
            f" (logprobs differ by {(ours - expected).abs().max().item():.2g}); the Llama and Qwen families are"
        )


def _check_family(causal_lm: PreTrainedModel) -> None:
    """A window is longer than the probe, so it would not be noticed there."""
    kinds = set(getattr(causal_lm.config, "layer_types", None) or ("full_attention",))
    if kinds != {"full_attention"}:
        raise UnsupportedModel(
            f"policies[].model: layers of type {', '.join(sorted(kinds - {'full_attention'}))} are not trained by this"
            " version; take a model whose layers all attend to everything before"
        )
    if not hasattr(causal_lm.base_model, "layers") or not isinstance(getattr(causal_lm, "lm_head", None), nn.Linear):
        raise UnsupportedModel(
            f"policies[].model: {type(causal_lm).__name__} has no decoder layers or head where we look"
        )


def _spread(network: PolicyNetwork, *, compute_dtype: torch.dtype, device: torch.device) -> None:
    """Computes in `compute_dtype`, averages gradients over the ranks in float32. All ranks call it together."""
    mesh = init_device_mesh(device.type, (ranks.world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    # Alone, a rank has nothing to gain from taking a layer apart again between the two passes.
    reshard = ranks.world_size() > 1
    for layer in network.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    # The root holds embeddings, the last norm and the head, which the backward pass of the chunks needs again.
    fully_shard(network, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
