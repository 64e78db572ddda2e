"""A critic's network: values as transformers computes them, and a head that is published, saved and gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load
from transformers import LlamaConfig, LlamaForSequenceClassification, Qwen2Config, Qwen2ForSequenceClassification

from tests.support.trainer.samples import critic_policy, rows, train_on
from tests.support.trainer.shelf import Shelf
from tests.support.trainer.storages import same, state_of
from trimtab.trainer.batch import Row, pack
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import ModelWeights
from trimtab.trainer.network.packed_network import Placement
from trimtab.trainer.network.value_network import ValueNetwork

SAMPLES = 12
CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 15,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "num_labels": 1,
}


def critic(model: Path, **trainer: Any) -> Learner:
    return Learner(critic_policy(**trainer), model_path=model)


def train(learner: Learner, *, steps: range) -> None:
    for step in steps:
        train_on(learner, rows(SAMPLES, seed=step), of=SAMPLES)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_values_are_those_of_transformers_before_each_trained_token(tmp_path: Path, family: str) -> None:
    torch.manual_seed(3)
    model = (
        LlamaForSequenceClassification(LlamaConfig(**SHAPE))
        if family == "llama"
        else Qwen2ForSequenceClassification(Qwen2Config(**SHAPE))
    ).eval()
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(tmp_path)
    network = ValueNetwork.load(tmp_path, Placement())
    given = rows(6, seed=0)
    with torch.no_grad():
        ours = network(pack(given, device=CPU)).values
        wanted = []
        for row in sorted(given, key=lambda row: (-len(row.token_ids), row.key)):
            ids = torch.from_numpy(row.token_ids.astype(np.int64))
            states = model.model(input_ids=ids[None]).last_hidden_state[0]
            before = np.flatnonzero(row.mask) - 1
            wanted.append(model.score(states)[before, 0])
    assert ours is not None
    assert torch.cat(wanted).abs().max() > 0.1
    torch.testing.assert_close(ours, torch.cat(wanted), rtol=0, atol=1e-5)


def test_a_model_without_a_value_head_expects_nothing_at_first(model: Path) -> None:
    learner = critic(model)
    assert set(learner.model.state_dict()) >= {"score.weight", "model.embed_tokens.weight"}
    assert "lm_head.weight" not in learner.model.state_dict()
    with torch.no_grad():
        values = learner.network(pack(rows(4, seed=0), device=CPU)).values
    assert not values.any()


def expecting(learner: Learner, given: list[Row]) -> list[Row]:
    """With the critic's present values as the column, and what is missing to a return of 1 or -1 as the advantage."""
    told = []
    for row in given:
        with torch.no_grad():
            values = learner.network(pack([row], device=CPU)).values.numpy()
        column, advantages = np.zeros_like(row.logprobs), np.zeros_like(row.advantages)
        column[row.mask] = values
        advantages[row.mask] = (1.0 if row.token_ids[0] % 2 else -1.0) - values
        told.append(
            replace(row, columns={"values": column}, column_versions={"values": learner.step}, advantages=advantages)
        )
    return told


@pytest.mark.slow
def test_it_learns_the_returns_of_its_rows(model: Path) -> None:
    learner = critic(model)
    given = rows(SAMPLES, seed=0)
    measures = [train_on(learner, expecting(learner, given), of=SAMPLES).measures for _ in range(60)]
    assert measures[0].value_error == pytest.approx(1.0)
    assert measures[0].explained_variance is not None
    assert measures[0].explained_variance <= 0.0, "one value for all explains nothing"
    assert measures[-1].value_error is not None
    assert measures[-1].value_error < 0.1
    assert measures[-1].explained_variance is not None
    assert measures[-1].explained_variance > 0.9
    assert measures[-1].logprob_mismatch is None, "a critic says nothing that engines sample from"


def test_how_old_values_are_is_measured_in_the_critics_own_versions(model: Path) -> None:
    learner = critic(model)
    fresh = train_on(learner, expecting(learner, rows(SAMPLES, seed=0)), of=SAMPLES).measures
    stale = expecting(learner, rows(SAMPLES, seed=1))
    train_on(learner, expecting(learner, rows(SAMPLES, seed=2)), of=SAMPLES)
    train_on(learner, expecting(learner, rows(SAMPLES, seed=3)), of=SAMPLES)
    assert fresh.values_staleness == 0.0
    assert train_on(learner, stale, of=SAMPLES).measures.values_staleness == 2.0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_published_weights_are_a_model_that_transformers_loads(model: Path, tmp_path: Path, dtype: str) -> None:
    learner = critic(model, dtype=dtype)
    train(learner, steps=range(2))
    weights = learner.weights()
    assert isinstance(weights, ModelWeights)
    data = np.empty(weights.layout.data_bytes, dtype=np.uint8)
    for block in weights.layout.blocks:
        weights.read(block, data[block.start : block.end])
    published = weights.layout.prefix + data.tobytes()
    tensors = load(published)
    assert tensors["score.weight"].shape == (1, tensors["model.embed_tokens.weight"].shape[1])
    assert tensors["score.weight"].any()
    config = LlamaConfig.from_pretrained(model)
    config.num_labels = 1
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(published)
    reads: Any = LlamaForSequenceClassification
    loaded, told = reads.from_pretrained(tmp_path, dtype=torch.float32, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    rounded = {name: t.to(getattr(torch, dtype)).float() for name, t in learner.model.state_dict().items()}
    assert same(dict(loaded.state_dict()), rounded)


def test_a_restored_critic_goes_on_bit_for_bit(model: Path, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    learner = critic(model)
    train(learner, steps=range(2))
    shelf.save(learner)
    restored = critic(model)
    shelf.restore(restored)
    assert restored.step == 2
    assert same(state_of(restored), state_of(learner))
    assert state_of(restored)["score.weight"].any()
    train(learner, steps=range(2, 4))
    train(restored, steps=range(2, 4))
    assert same(state_of(restored), state_of(learner))
