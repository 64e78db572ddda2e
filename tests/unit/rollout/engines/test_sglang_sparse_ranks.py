"""Sparse updates where each rank holds a part of the model: every rank writes its own elements, and no others.

The layers have the attributes by which SGLang's own share out rows and columns; tests/sglang holds the loader against a
real server of two ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from trimtab.rollout.engines.sglang.inside_sglang import trimtab_sparse_loader as loader

HIDDEN, INTERMEDIATE, VOCABULARY, PADDED = 12, 8, 21, 24
HEADS, KV_HEADS, HEAD = 4, 2, 3
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
Weights = dict[str, torch.Tensor]


def checkpoint() -> Weights:
    torch.manual_seed(0)
    shapes = {
        f"{ATTENTION}.q_proj.weight": (HEADS * HEAD, HIDDEN),
        f"{ATTENTION}.q_proj.bias": (HEADS * HEAD,),
        f"{ATTENTION}.k_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        f"{ATTENTION}.k_proj.bias": (KV_HEADS * HEAD,),
        f"{ATTENTION}.v_proj.weight": (KV_HEADS * HEAD, HIDDEN),
        f"{ATTENTION}.v_proj.bias": (KV_HEADS * HEAD,),
        f"{ATTENTION}.o_proj.weight": (HIDDEN, HEADS * HEAD),
        f"{MLP}.gate_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{MLP}.up_proj.weight": (INTERMEDIATE, HIDDEN),
        f"{MLP}.down_proj.weight": (HIDDEN, INTERMEDIATE),
        f"{MLP}.down_proj.bias": (HIDDEN,),
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "lm_head.weight": (VOCABULARY, HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


class _Layer(torch.nn.Module):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None, **attributes: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(weight.clone())
        if bias is not None:
            self.bias = torch.nn.Parameter(bias.clone())
        for name, value in attributes.items():
            setattr(self, name, value)


class Qwen2ForCausalLM(torch.nn.Module):
    """What one rank of SGLang makes of a checkpoint."""

    def __init__(self, weights: Weights, *, rank: int, ranks: int) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=False, vocab_size=VOCABULARY)
        split: dict[str, Any] = {"tp_rank": rank, "tp_size": ranks}
        layer = torch.nn.Module()
        layer.self_attn = torch.nn.Module()
        layer.self_attn.qkv_proj = self._heads(weights, rank=rank, ranks=ranks)
        layer.self_attn.o_proj = _Layer(
            weights[f"{ATTENTION}.o_proj.weight"].chunk(ranks, 1)[rank],
            input_is_parallel=True,
            input_size=HEADS * HEAD,
            **split,
        )
        layer.mlp = torch.nn.Module()
        gate, up = (weights[f"{MLP}.{name}.weight"].chunk(ranks)[rank] for name in ("gate_proj", "up_proj"))
        layer.mlp.gate_up_proj = _Layer(torch.cat([gate, up]), output_sizes=[INTERMEDIATE, INTERMEDIATE], **split)
        layer.mlp.down_proj = _Layer(
            weights[f"{MLP}.down_proj.weight"].chunk(ranks, 1)[rank],
            weights[f"{MLP}.down_proj.bias"],
            input_is_parallel=True,
            input_size=INTERMEDIATE,
            **split,
        )
        self.model = torch.nn.Module()
        self.model.layers = torch.nn.ModuleList([layer])
        self.model.norm = _Layer(weights["model.norm.weight"])
        self.model.embed_tokens = self._vocabulary(weights["model.embed_tokens.weight"], rank=rank, ranks=ranks)
        self.lm_head = self._vocabulary(weights["lm_head.weight"], rank=rank, ranks=ranks)

    @staticmethod
    def _heads(weights: Weights, *, rank: int, ranks: int) -> _Layer:
        replicas = max(1, ranks // KV_HEADS)
        kv_heads = max(1, KV_HEADS // ranks)

        def part(kind: str, what: str) -> torch.Tensor:
            whole = weights[f"{ATTENTION}.{kind}_proj.{what}"]
            if kind == "q":
                return whole.chunk(ranks)[rank]
            return whole.chunk(KV_HEADS // kv_heads)[rank // replicas]

        return _Layer(
            torch.cat([part(kind, "weight") for kind in "qkv"]),
            torch.cat([part(kind, "bias") for kind in "qkv"]),
            total_num_heads=HEADS,
            total_num_kv_heads=KV_HEADS,
            num_heads=HEADS // ranks,
            num_kv_heads=kv_heads,
            num_kv_head_replicas=replicas,
            head_size=HEAD,
            v_head_size=HEAD,
            tp_rank=rank,
            tp_size=ranks,
            kv_tp_rank=rank,
            output_sizes=[HEADS * HEAD, kv_heads * HEAD * ranks, kv_heads * HEAD * ranks],
        )

    @staticmethod
    def _vocabulary(whole: torch.Tensor, *, rank: int, ranks: int) -> _Layer:
        rows = PADDED // ranks
        padded = torch.cat([whole, torch.zeros(PADDED - VOCABULARY, HIDDEN)])
        held = SimpleNamespace(
            org_vocab_start_index=min(rank * rows, VOCABULARY), org_vocab_end_index=min((rank + 1) * rows, VOCABULARY)
        )
        return _Layer(padded.chunk(ranks)[rank], org_vocab_size=VOCABULARY, shard_indices=held, tp_size=ranks)


def changed(weights: Weights, file: Path, *, share: float) -> Weights:
    """Others of the elements, the first and the last among them, and the file that says so."""
    after: Weights = {}
    tensors: Weights = {}
    for name, tensor in weights.items():
        chosen = torch.rand(tensor.numel()) < share
        chosen[0] = chosen[-1] = True
        indices = chosen.nonzero().view(-1)
        values = torch.randn(len(indices))
        flat = tensor.clone().view(-1)
        flat[indices] = values
        after[name] = flat.view(tensor.shape)
        tensors |= {f"{name}#indices": indices, f"{name}#values": values}
    save_file(tensors, file, metadata={"format": "trimtab-sparse-1", "base_version": "3"})
    return after


@pytest.mark.parametrize("share", [0.1, 1.0])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_rank_ends_with_its_part_of_the_changed_checkpoint(ranks: int, share: float, tmp_path: Path) -> None:
    """With four ranks two of them have the same keys and values, and the last has vocabulary and padding."""
    before, file = checkpoint(), tmp_path / "update"
    after = changed(before, file, share=share)
    for rank in range(ranks):
        model = Qwen2ForCausalLM(before, rank=rank, ranks=ranks)
        outcome = tmp_path / f"outcome.{rank}"
        named = [(str(file), torch.Tensor()), (str(outcome), torch.Tensor())]
        loader.prepare(model, named)
        assert json.loads(outcome.read_text()) == {"refused": None, "base_version": "3"}
        loader.commit(model, named)
        expected = Qwen2ForCausalLM(after, rank=rank, ranks=ranks)
        for (name, one), (_, other) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
            assert torch.equal(one, other), f"{name} of rank {rank}"


@pytest.mark.parametrize("name", [f"{ATTENTION}.k_proj.weight", f"{ATTENTION}.o_proj.weight", "lm_head.weight"])
def test_what_lies_outside_the_whole_tensor_is_refused_by_every_rank(name: str, tmp_path: Path) -> None:
    """Also by one that would not hold it."""
    weights, file, outcome = checkpoint(), tmp_path / "update", tmp_path / "outcome"
    indices = torch.tensor([weights[name].numel()])
    metadata = {"format": "trimtab-sparse-1", "base_version": "3"}
    save_file({f"{name}#indices": indices, f"{name}#values": torch.ones(1)}, file, metadata=metadata)
    for rank in range(2):
        model = Qwen2ForCausalLM(weights, rank=rank, ranks=2)
        loader.prepare(model, [(str(file), torch.Tensor()), (str(outcome), torch.Tensor())])
        assert f"outside its {weights[name].numel()} elements" in json.loads(outcome.read_text())["refused"]
