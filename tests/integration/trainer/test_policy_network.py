"""A pack gives the logprobs and gradients of its sequences one by one, whatever they are packed with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from trimtab.api.sampling import Sampling
from trimtab.trainer.batch import Row, RowEpisode, pack
from trimtab.trainer.network.attention import bundles
from trimtab.trainer.network.chosen_logprobs import chosen_logprobs
from trimtab.trainer.network.model_files import UnsupportedModel
from trimtab.trainer.network.packed_network import Placement
from trimtab.trainer.network.policy_network import PolicyNetwork

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
}
FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE)),
}
TEMPERATURE = 0.7
SAMPLING = Sampling(temperature=TEMPERATURE)


def rows(lengths: list[int]) -> list[Row]:
    rng = np.random.default_rng(7)
    return [
        Row(
            key=number,
            token_ids=rng.integers(0, 97, length).astype(np.int32),
            logprobs=np.zeros(length, dtype=np.float32),
            mask=rng.random(length) < 0.7,
            versions=np.zeros(length, dtype=np.int64),
            advantages=np.zeros(length, dtype=np.float32),
            episode=RowEpisode(group="g", index=number, rows=1, trained_tokens=length),
        )
        for number, length in enumerate(lengths)
    ]


def one_by_one(model: PreTrainedModel, given: list[Row]) -> list[torch.Tensor]:
    scored = []
    for row in sorted(given, key=lambda row: (-len(row.token_ids), row.key)):
        ids = torch.from_numpy(row.token_ids.astype(np.int64))
        logprobs = torch.log_softmax(model(ids[None], use_cache=False).logits[0] / TEMPERATURE, dim=-1)
        scored += [logprobs[place - 1, ids[place]] for place in np.flatnonzero(row.mask) if place > 0]
    return scored


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("gradient_checkpointing", [False, True])
def test_a_pack_equals_its_sequences_one_by_one(tmp_path: Path, family: str, gradient_checkpointing: bool) -> None:
    torch.manual_seed(3)
    FAMILIES[family]().save_pretrained(tmp_path)
    network = PolicyNetwork.load(
        tmp_path,
        sampling=SAMPLING,
        with_entropy=True,
        placement=Placement(gradient_checkpointing=gradient_checkpointing),
    )
    # Bundles of one, of equal and of nearly equal lengths; sequences of one token; one without a trained one.
    given = rows([30, 17, 17, 16, 15, 9, 9, 9, 2, 1, 1])
    scores = network(pack(given, device=torch.device("cpu")))
    weights = torch.linspace(-1, 1, len(scores.logprobs))
    (scores.logprobs * weights).sum().backward()

    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    expected = torch.stack(one_by_one(reference, given))
    (expected * weights).sum().backward()
    torch.testing.assert_close(scores.logprobs, expected, rtol=0, atol=1e-5)
    for (name, ours), theirs in zip(network.causal_lm.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)


def test_chunks_of_logits_change_nothing() -> None:
    torch.manual_seed(1)
    hidden, head = torch.randn(23, 8, requires_grad=True), torch.randn(31, 8, requires_grad=True)
    chosen = torch.randint(0, 31, (23,))
    results = []
    for size in (1 << 20, 31 * 4, 1):
        scores = chosen_logprobs(hidden, head, chosen, temperature=0.8, with_entropy=True, chunk_logits=size)
        assert scores.entropies is not None
        gradients = torch.autograd.grad((scores.logprobs + scores.entropies).sum(), (hidden, head))
        results.append((scores.logprobs, scores.entropies, *gradients))
    exact = torch.log_softmax(hidden @ head.T / 0.8, dim=-1)
    torch.testing.assert_close(results[0][0], exact.gather(-1, chosen[:, None])[:, 0])
    torch.testing.assert_close(results[0][1], -(exact.exp() * exact).sum(-1))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


def test_a_model_that_would_be_computed_wrongly_is_refused(tmp_path: Path) -> None:
    torch.manual_seed(2)
    windowed = Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=4, max_window_layers=1)
    Qwen2ForCausalLM(windowed).save_pretrained(tmp_path / "windowed")
    with pytest.raises(UnsupportedModel, match=r"policies\[\].model: layers of type sliding_attention"):
        PolicyNetwork.load(tmp_path / "windowed", sampling=Sampling())


def test_families_beyond_those_named_pass_where_they_are_computed_exactly(tmp_path: Path) -> None:
    torch.manual_seed(2)
    GemmaForCausalLM(GemmaConfig(**SHAPE)).save_pretrained(tmp_path)
    given = rows([9, 4])
    network = PolicyNetwork.load(tmp_path, sampling=SAMPLING)
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        ours = network(pack(given, device=torch.device("cpu"))).logprobs
        torch.testing.assert_close(ours, torch.stack(one_by_one(reference, given)), rtol=0, atol=1e-5)


def test_bundles_hold_neighbours_of_similar_length() -> None:
    lengths = [100, 90, 81, 79, 70, 64, 63, 10, 10, 1]
    found = list(bundles(lengths))
    assert [number for first, last in found for number in range(first, last)] == list(range(len(lengths)))
    assert found == [(0, 3), (3, 6), (6, 7), (7, 9), (9, 10)]
    assert list(bundles([])) == []
