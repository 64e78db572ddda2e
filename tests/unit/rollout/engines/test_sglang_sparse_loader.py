"""Sparse updates in a model laid out as SGLang lays it out: fused projections, a padded vocabulary, a tied output.

tests/sglang holds the loader against the real one; here is what a real one cannot easily be brought to show.
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

HIDDEN, VOCABULARY, PADDED = 4, 6, 8
ATTENTION = "model.layers.0.self_attn"


class _Layer(torch.nn.Module):
    def __init__(self, *shape: int, **attributes: Any) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape))
        for name, value in attributes.items():
            setattr(self, name, value)


class LlamaForCausalLM(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=True, vocab_size=VOCABULARY)
        attention = torch.nn.Module()
        attention.qkv_proj = _Layer(8, HIDDEN, output_sizes=[4, 2, 2], tp_size=1)
        attention.o_proj = _Layer(HIDDEN, 4, tp_size=1)
        layer = torch.nn.Module()
        layer.self_attn = attention
        self.model = torch.nn.Module()
        held = SimpleNamespace(org_vocab_start_index=0, org_vocab_end_index=VOCABULARY)
        self.model.embed_tokens = _Layer(PADDED, HIDDEN, org_vocab_size=VOCABULARY, tp_size=1, shard_indices=held)
        self.model.layers = torch.nn.ModuleList([layer])
        self.model.norm = _Layer(HIDDEN)
        self.lm_head = self.model.embed_tokens

    @property
    def qkv(self) -> Any:
        return self.get_submodule(f"{ATTENTION}.qkv_proj")


@pytest.fixture
def model() -> LlamaForCausalLM:
    return LlamaForCausalLM()


def _save(file: Path, changes: dict[str, dict[int, float]], *, dtype: torch.dtype = torch.bfloat16) -> None:
    tensors = {}
    for name, elements in changes.items():
        tensors[f"{name}#indices"] = torch.tensor(list(elements), dtype=torch.int64)
        tensors[f"{name}#values"] = torch.tensor(list(elements.values()), dtype=dtype)
    save_file(tensors, file, metadata={"format": "trimtab-sparse-1", "base_version": "3"})


def _prepare(model: LlamaForCausalLM, file: Path) -> dict[str, str | None]:
    loader.prepare(model, _named(file))
    outcome: dict[str, str | None] = json.loads(file.with_suffix(".outcome").read_text())
    return outcome


def _named(file: Path) -> list[tuple[str, torch.Tensor]]:
    return [(str(file), torch.Tensor()), (str(file.with_suffix(".outcome")), torch.Tensor())]


def _state(model: LlamaForCausalLM) -> dict[str, torch.Tensor]:
    return {name: parameter.clone() for name, parameter in model.named_parameters()}


def test_elements_arrive_where_the_checkpoint_has_them(model: LlamaForCausalLM, tmp_path: Path) -> None:
    file = tmp_path / "update"
    changes = {
        f"{ATTENTION}.q_proj.weight": {0: -1.0, 15: -2.0},
        f"{ATTENTION}.k_proj.weight": {5: -3.0},
        f"{ATTENTION}.v_proj.weight": {0: -4.0, 7: -5.0},
        f"{ATTENTION}.o_proj.weight": {2: -6.0},
        "model.embed_tokens.weight": {VOCABULARY * HIDDEN - 1: -7.0},
        "model.norm.weight": {3: 0.1},
    }
    _save(file, changes)
    expected = _state(model)
    qkv = expected[f"{ATTENTION}.qkv_proj.weight"].view(-1)
    qkv[0], qkv[15], qkv[16 + 5], qkv[24], qkv[24 + 7] = -1.0, -2.0, -3.0, -4.0, -5.0
    expected[f"{ATTENTION}.o_proj.weight"].view(-1)[2] = -6.0
    expected["model.embed_tokens.weight"].view(-1)[VOCABULARY * HIDDEN - 1] = -7.0
    expected["model.norm.weight"][3] = torch.tensor(0.1, dtype=torch.bfloat16).float()

    assert _prepare(model, file) == {"refused": None, "base_version": "3"}
    loader.commit(model, _named(file))
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[name]), name


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({f"{ATTENTION}.k_proj.weight": {8: 1.0}}, "outside its 8 elements"),
        ({f"{ATTENTION}.k_proj.weight": {-1: 1.0}}, "outside its 8 elements"),
        ({"model.embed_tokens.weight": {VOCABULARY * HIDDEN: 1.0}}, "outside its 24 elements"),
        ({"model.layers.1.self_attn.q_proj.weight": {0: 1.0}}, "has no model.layers.1"),
        ({f"{ATTENTION}.q_proj.bias": {0: 1.0}}, "has no model.layers.0.self_attn.q_proj.bias"),
        ({"lm_head.weight": {0: 1.0}}, "lm_head.weight is the embedding"),
    ],
    ids=["behind a part", "before a part", "padding", "no layer", "no bias", "tied output"],
)
def test_what_has_no_place_is_refused_and_nothing_is_written(
    model: LlamaForCausalLM, tmp_path: Path, changes: dict[str, dict[int, float]], reason: str
) -> None:
    file = tmp_path / "update"
    before = _state(model)
    _save(file, {"model.norm.weight": {0: 9.0}} | changes)
    assert reason in (_prepare(model, file)["refused"] or "")
    with pytest.raises(RuntimeError, match="was not prepared"):
        loader.commit(model, _named(file))
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


@pytest.mark.parametrize(
    ("attribute", "value", "reason"),
    [
        ("use_presharded_weights", True, "split already"),
        ("use_intel_amx_backend", True, "packed for AMX"),
        ("output_sizes", [4, 2, 4], "its parts are [4, 2, 4]"),
        ("weight", torch.nn.Parameter(torch.zeros(8, 4, dtype=torch.float8_e4m3fn), False), "only unquantised"),
        ("weight", torch.nn.Parameter(torch.zeros(4, 8).t()), "not laid out row by row"),
    ],
    ids=["presharded", "packed", "other parts", "quantised", "transposed"],
)
def test_layouts_that_are_not_known_are_refused(
    model: LlamaForCausalLM, tmp_path: Path, attribute: str, value: object, reason: str
) -> None:
    file = tmp_path / "update"
    _save(file, {f"{ATTENTION}.q_proj.weight": {0: 1.0}})
    setattr(model.qkv, attribute, value)
    assert reason in (_prepare(model, file)["refused"] or "")


def test_a_split_that_is_not_known_is_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    model.get_submodule("model.norm").tp_size = 2  # type: ignore[assignment]
    _save(tmp_path / "update", {"model.norm.weight": {0: 1.0}})
    assert "split over 2 ranks in a way that is not known" in (_prepare(model, tmp_path / "update")["refused"] or "")


def test_sizes_that_were_padded_for_the_ranks_are_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    model.config.num_attention_heads, model.config.original_num_attention_heads = 4, 3
    _save(tmp_path / "update", {"model.norm.weight": {0: 1.0}})
    assert "has padded num_attention_heads" in (_prepare(model, tmp_path / "update")["refused"] or "")


def test_files_that_are_no_sparse_update_are_refused(model: LlamaForCausalLM, tmp_path: Path) -> None:
    file = tmp_path / "update"
    file.write_bytes(b"no safetensors")
    assert "cannot be read" in (_prepare(model, file)["refused"] or "")
    save_file({"model.norm.weight": torch.zeros(HIDDEN)}, file)
    assert "not a sparse update" in (_prepare(model, file)["refused"] or "")
    metadata = {"format": "trimtab-sparse-1", "base_version": "3"}
    save_file({"model.norm.weight#values": torch.zeros(1)}, file, metadata=metadata)
    assert "alone" in (_prepare(model, file)["refused"] or "")


def test_another_family_is_refused(tmp_path: Path) -> None:
    class GemmaForCausalLM(LlamaForCausalLM):
        pass

    _save(tmp_path / "update", {"model.norm.weight": {0: 1.0}})
    assert "GemmaForCausalLM is served" in (_prepare(GemmaForCausalLM(), tmp_path / "update")["refused"] or "")
