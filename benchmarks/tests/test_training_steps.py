"""The contenders of the trainer benchmark get the same rows, long-tailed as they claim to be, and compute the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.trainer import LONG_TAILED, ROWS, SEED
from benchmarks.training.padded_step import PaddedStep
from benchmarks.training.step_comparison import gradient_distance, step_totals
from benchmarks.training.step_data import Lengths, grpo_policy
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner

VOCABULARY = 64


@pytest.fixture
def model(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.fixture
def rows() -> list[Row]:
    chance = np.random.default_rng(0)
    made = []
    for key, length in enumerate((5, 40, 9, 12, 3, 7, 30, 4, 6)):
        mask = np.arange(length) >= 2
        made.append(
            Row(
                key=key,
                token_ids=chance.integers(0, VOCABULARY, length).astype(np.int32),
                logprobs=np.where(mask, -chance.exponential(4.0, length), 0.0).astype(np.float32),
                mask=mask,
                versions=np.where(mask, 0, -1),
                advantages=np.full(length, chance.normal(), dtype=np.float32),
                episode=sole_row(key, mask),
            )
        )
    return made


def test_the_benchmark_s_answers_are_long_tailed() -> None:
    answers = Lengths().draw(ROWS, seed=SEED)
    assert max(answers) >= LONG_TAILED * sum(answers) / len(answers)
    assert min(answers) >= 1


def test_the_padded_step_has_the_gradients_of_ours(model: Path, rows: list[Row]) -> None:
    padded = PaddedStep(model)
    loss = padded.accumulate(rows)
    expected = {name: tensor.grad for name, tensor in padded.model.named_parameters() if tensor.grad is not None}
    # With masters that are published as they are, both score the same weights.
    learner = Learner(grpo_policy(micro_batch_tokens=64, dtype="float32"), model_path=model)
    learner.accumulate(rows)
    ours = {
        name: tensor.grad / len(rows) for name, tensor in learner.model.named_parameters() if tensor.grad is not None
    }
    assert gradient_distance(ours, expected) < 1e-4
    assert learner.update(step_totals(rows)).loss == pytest.approx(loss, rel=1e-4)


@pytest.mark.slow
def test_another_gradient_is_told_apart(model: Path, rows: list[Row]) -> None:
    whole, without_one = PaddedStep(model), PaddedStep(model)
    whole.accumulate(rows)
    without_one.accumulate(rows[1:])
    found, expected = (
        {name: tensor.grad for name, tensor in step.model.named_parameters() if tensor.grad is not None}
        for step in (without_one, whole)
    )
    assert gradient_distance(found, expected) > 1e-2
