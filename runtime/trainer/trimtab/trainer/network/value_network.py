"""A model with a value head: a pack of sequences in, what is expected before each of its trained tokens out.

Its head has the name and the shape of transformers' classes for sequence classification with one label, so that the
published weights are a model that others can load too.
"""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from trimtab.trainer.batch import PackedBatch
from trimtab.trainer.network.attention import IMPLEMENTATION
from trimtab.trainer.network.blank_model import BlankModel
from trimtab.trainer.network.chosen_logprobs import TokenScores
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


class ValueNetwork(PackedNetwork):
    """A critic."""

    @classmethod
    def load(cls, path: Path, placement: Placement) -> ValueNetwork:
        """Where the folder has no value head, that is zero: nothing is expected of anything at first."""
        blank = BlankModel.of(path, value_head=True)
        files = ModelFiles(path)
        _check_family(blank.causal_lm)
        prove(lambda: cls._objection(path, files))
        return cls(blank.causal_lm).filled(blank, files, placement)

    def forward(self, batch: PackedBatch) -> TokenScores:
        head = cast(nn.Linear, self.causal_lm.score)
        values = linear(self.hidden(batch), head.weight)[:, 0].float()
        return TokenScores(logprobs=batch.sampled_logprobs, entropies=None, values=values)

    @classmethod
    @torch.no_grad()
    def _objection(cls, path: Path, files: ModelFiles) -> str | None:
        """As with a policy, of the states that the head reads: the head itself may be zero."""
        blank = BlankModel.of(path, value_head=True)
        probe = cls(blank.causal_lm).eval()
        blank.causal_lm.base_model.layers = probe.layers[:PROBE_LAYERS]
        blank.fill(files, within=probe, device=CPU)
        tokens = (torch.arange(PROBE_TOKENS) * 7919 + 1) % probe.causal_lm.config.vocab_size
        expected = probe.causal_lm.base_model(input_ids=tokens[None], use_cache=False).last_hidden_state[0, :-1]
        probe.causal_lm.set_attn_implementation(IMPLEMENTATION)
        ours = probe.hidden(probe_batch(tokens))
        if torch.allclose(ours, expected, atol=PROBE_TOLERANCE, rtol=PROBE_TOLERANCE):
            return None
        return (
            f"policies[].model: {type(probe.causal_lm).__name__} is not computed exactly by this trainer"
            f" (states differ by {(ours - expected).abs().max().item():.2g}); the Llama and Qwen families are"
        )


def _check_family(model: PreTrainedModel) -> None:
    check_layers(model)
    head = getattr(model, "score", None)
    if not hasattr(model.base_model, "layers") or not isinstance(head, nn.Linear) or head.bias is not None:
        raise UnsupportedModel(
            f"policies[].model: {type(model).__name__} has no decoder layers or value head where we look"
        )
