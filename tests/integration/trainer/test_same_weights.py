"""Trainer and engine score the same weights: those that were published, in the published type, whatever the masters
are. How far they are apart is measured with a version's own weights, however many steps later its samples come.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file
from transformers import LlamaForCausalLM

from tests.support.template_process import TemplateProcess
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.samples import policy, rows, train_on
from tests.support.trainer.scored_rows import SAMPLES, late_rank, late_steps, sampled
from trimtab.trainer.learner import Learner
from trimtab.trainer.model_weights import ModelWeights

EXACT = 1e-5

Engine = Callable[[Learner], LlamaForCausalLM]


@pytest.fixture
def engine(model: Path) -> Engine:
    """With the weights that the learner publishes now."""

    def loaded(learner: Learner) -> LlamaForCausalLM:
        weights = learner.weights()
        assert isinstance(weights, ModelWeights)
        data = np.empty(weights.layout.data_bytes, dtype=np.uint8)
        for block in weights.layout.blocks:
            weights.read(block, data[block.start : block.end])
        served = LlamaForCausalLM.from_pretrained(model, dtype=torch.float32)
        published = load(weights.layout.prefix + data.tobytes())
        served.load_state_dict({name: tensor.float() for name, tensor in published.items()})
        return served

    return loaded


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_fresh_sample_has_the_probability_it_was_drawn_with(model: Path, engine: Engine, dtype: str) -> None:
    """Also when the masters have moved by less than their rounding, as most of them do in a step."""
    learner = Learner(policy(dtype=dtype), model_path=model)
    for step in range(3):
        outcome = train_on(learner, sampled(engine(learner), version=step, seed=step), of=SAMPLES)
        assert outcome.measures.sampling_drift < EXACT
    masters = [parameter.detach() for parameter in learner.model.parameters()]
    assert any(not torch.equal(tensor, tensor.to(torch.bfloat16).float()) for tensor in masters)


def test_a_penalty_begins_at_nothing_from_a_model_of_a_wider_type(model: Path) -> None:
    plain = policy(dtype="bfloat16").model_dump(by_alias=True, exclude_none=True)
    penalised = type(policy()).model_validate(plain | {"algorithm": {"name": "grpo", "kl": {"coefficient": 0.1}}})
    outcome = train_on(Learner(penalised, model_path=model), rows(4, seed=0), of=4)
    assert outcome.measures.reference_kl == 0.0


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_mismatch_is_measured_with_the_weights_that_sampled(model: Path, engine: Engine, dtype: str) -> None:
    learner = Learner(policy(dtype=dtype), model_path=model)
    first = engine(learner)
    nothing_yet = train_on(learner, rows(SAMPLES, seed=0, version=-1), of=SAMPLES)
    assert nothing_yet.measures.logprob_mismatch is None
    learner.weights()
    late = train_on(learner, sampled(first, version=0, seed=1), of=SAMPLES)
    assert late.measures.sampling_drift > 100 * EXACT, "the weights have moved since"
    assert late.measures.logprob_mismatch is not None
    assert late.measures.logprob_mismatch < EXACT


def test_it_stands_until_the_next_and_says_what_is_wrong_by_then(model: Path, engine: Engine) -> None:
    """Samples are two versions old. Kept are 0, 1 and 4, and what version 4 sampled is off."""
    learner = Learner(policy(), model_path=model)
    served: list[LlamaForCausalLM] = []
    figures: list[float] = []
    for step in range(7):
        served.append(engine(learner))
        version = max(0, step - 2)
        made = sampled(served[version], version=version, seed=step, error=0.5 if version == 4 else 0.0)
        measured = train_on(learner, made, of=SAMPLES).measures.logprob_mismatch
        assert measured is not None
        figures.append(measured)
    assert max(figures[:6]) < EXACT
    assert figures[6] == pytest.approx(0.5, abs=1e-3)


def test_a_version_that_nobody_sampled_from_makes_way(model: Path, engine: Engine) -> None:
    learner = Learner(policy(), model_path=model)
    engine(learner)
    train_on(learner, rows(SAMPLES, seed=0, version=-1), of=SAMPLES)
    second = engine(learner)
    # Pools went from nothing to version 1, so version 0 is never heard of.
    outcome = train_on(learner, sampled(second, version=1, seed=1), of=SAMPLES)
    assert outcome.measures.logprob_mismatch is None
    third = engine(learner)
    outcome = train_on(learner, sampled(third, version=2, seed=2), of=SAMPLES)
    assert outcome.measures.logprob_mismatch is not None


def test_an_answer_that_another_version_began_says_nothing(model: Path, engine: Engine) -> None:
    learner = Learner(policy(), model_path=model)
    engine(learner)
    began = [replace(row, versions=np.where(np.cumsum(row.mask) == 1, -1, row.versions)) for row in rows(4, seed=0)]
    assert train_on(learner, began, of=4).measures.logprob_mismatch is None


def test_measuring_changes_no_update(model: Path, engine: Engine) -> None:
    measured, other = (Learner(policy(), model_path=model) for _ in range(2))
    for step in range(3):
        served = engine(measured)
        made = sampled(served, version=step, seed=step)
        assert train_on(measured, made, of=SAMPLES).measures.logprob_mismatch is not None
        assert train_on(other, made, of=SAMPLES).measures.logprob_mismatch is None
    for one, two in zip(measured.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_updates_reach_the_engines_in_their_size_however_small(model: Path, tmp_path: Path, engine: Engine) -> None:
    """A pretrained model begins on the published values, and an update is a small part of the way to the next."""
    LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(tmp_path)
    plain = policy(dtype="bfloat16").model_dump(by_alias=True, exclude_none=True)
    slow = {"name": "grpo", "optimizer": {"learningRate": 1e-5}}
    learner = Learner(type(policy()).model_validate(plain | {"algorithm": slow}), model_path=tmp_path)
    masters = [parameter.detach().clone() for parameter in learner.model.parameters()]
    before = [parameter.detach().clone() for parameter in engine(learner).parameters()]
    base = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    assert all(torch.equal(one, two) for one, two in zip(before, base.parameters(), strict=True)), (
        "it begins as it came"
    )
    train_on(learner, rows(SAMPLES, seed=0), of=SAMPLES)
    moved = arrived = 0.0
    after = engine(learner).parameters()
    for master, now, old, new in zip(masters, learner.model.parameters(), before, after, strict=True):
        way = now.detach() - master
        moved += float(way.abs().sum())
        arrived += float(((new - old).detach() * way.sign()).sum())
    assert arrived / moved == pytest.approx(1.0, abs=0.1)


@pytest.mark.slow
async def test_ranks_score_the_published_weights_too(
    rank_template: TemplateProcess, model: Path, tmp_path: Path
) -> None:
    """What FSDP has put together of the weights before is not taken for those that stand in."""
    half = tmp_path / "half"
    LlamaForCausalLM.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(half)
    await run_ranks(rank_template, late_rank, half, tmp_path, world_size=2)
    alone, mismatch = late_steps(half)
    assert mismatch is not None
    assert mismatch < EXACT
    for rank in range(2):
        found = load_file(tmp_path / f"{rank}.safetensors")
        assert found["mismatch"].item() < EXACT
        for name, tensor in alone.model.named_parameters():
            torch.testing.assert_close(found[name], tensor.detach(), rtol=1e-4, atol=2e-5, msg=name)
