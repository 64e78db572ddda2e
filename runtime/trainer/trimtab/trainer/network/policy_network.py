"""A transformers causal LM as the loss wants it: a pack of sequences in, logprobs of its trained tokens out."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from transformers import PreTrainedModel

from trimtab.api.sampling import Sampling
from trimtab.trainer.batch import PackedBatch
from trimtab.trainer.network.attention import IMPLEMENTATION
from trimtab.trainer.network.blank_model import BlankModel
from trimtab.trainer.network.chosen_logprobs import TokenScores, chosen_logprobs
from trimtab.trainer.network.model_files import ModelFiles, UnsupportedModel
from trimtab.trainer.network.packed_network import (
    CPU,
    PROBE_LAYERS,
    PROBE_TOKENS,
    PROBE_TOLERANCE,
    PackedNetwork,
    Placement,
    check_layers,
    probe_batch,
    prove,
)
from trimtab.trainer.network.truncation import Truncation

_HERE = Placement()


class PolicyNetwork(PackedNetwork):
    """What a policy is sampled from."""

    def __init__(self, causal_lm: PreTrainedModel, *, sampling: Sampling, with_entropy: bool) -> None:
        """`sampling` is how tokens are drawn from it: probabilities are those of that distribution."""
        super().__init__(causal_lm)
        self._temperature = sampling.temperature
        self._truncation = Truncation.of(sampling)
        self._with_entropy = with_entropy

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        sampling: Sampling,
        with_entropy: bool = False,
        placement: Placement = _HERE,
    ) -> PolicyNetwork:
        """Master weights are float32. Adapters have no values yet."""
        blank = BlankModel.of(path)
        files = ModelFiles(path)
        _check_family(blank.causal_lm)
        prove(lambda: cls._objection(path, files, sampling=sampling))
        network = cls(blank.causal_lm, sampling=sampling, with_entropy=with_entropy)
        return network.filled(blank, files, placement)

    @property
    def _head(self) -> torch.Tensor:
        return cast(torch.Tensor, self.causal_lm.lm_head.weight)

    def forward(self, batch: PackedBatch) -> TokenScores:
        return self._scores(batch, self._truncation)

    def _scores(self, batch: PackedBatch, truncation: Truncation) -> TokenScores:
        return chosen_logprobs(
            self.hidden(batch),
            self._head,
            batch.chosen,
            temperature=self._temperature,
            with_entropy=self._with_entropy,
            truncation=truncation,
        )

    @classmethod
    @torch.no_grad()
    def _objection(cls, path: Path, files: ModelFiles, *, sampling: Sampling) -> str | None:
        """Models differ in what they do to logits, and some attend to less than all that came before. One that our way
        does not compute exactly is refused here, and not found out by its rewards. Its first layers tell: the others
        are of the same kind, and all of them together need not fit into this machine.
        """
        blank = BlankModel.of(path)
        probe = cls(blank.causal_lm, sampling=sampling, with_entropy=False).eval()
        blank.causal_lm.base_model.layers = probe.layers[:PROBE_LAYERS]
        blank.fill(files, within=probe, device=CPU)
        tokens = (torch.arange(PROBE_TOKENS) * 7919 + 1) % probe._head.shape[0]
        logits = probe.causal_lm(input_ids=tokens[None], use_cache=False).logits[0, :-1].float() / probe._temperature
        expected = torch.log_softmax(logits, dim=-1).gather(-1, tokens[1:, None])[:, 0]
        probe.causal_lm.set_attn_implementation(IMPLEMENTATION)
        ours = probe._scores(probe_batch(tokens), Truncation()).logprobs
        if torch.allclose(ours, expected, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE):
            return None
        return (
            f"policies[].model: {type(probe.causal_lm).__name__} is not computed exactly by this trainer"
            f" (logprobs differ by {(ours - expected).abs().max().item():.2g}); the Llama and Qwen families are"
        )


def _check_family(causal_lm: PreTrainedModel) -> None:
    check_layers(causal_lm)
    if not hasattr(causal_lm.base_model, "layers") or not isinstance(getattr(causal_lm, "lm_head", None), nn.Linear):
        raise UnsupportedModel(
            f"policies[].model: {type(causal_lm).__name__} has no decoder layers or head where we look"
        )
