"""Adapters of low rank learn as the whole model would if only they could move, and the model itself stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from tests.support.template_process import TemplateProcess
from tests.support.trainer.adapted import (
    SAMPLES,
    adapting,
    adapting_rank,
    half_precision_rank,
    publish,
    scored,
    train,
)
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.samples import policy, rows, train_on
from tests.support.trainer.scored_rows import sampled
from tests.support.trainer.shelf import Shelf
from tests.support.trainer.storages import same, state_of
from trimtab.api.lora import Lora
from trimtab.api.policy import Policy
from trimtab.rollout.engines.builtin.low_rank import AdapterShape
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError
from trimtab.rollout.engines.builtin.transformer import Piece
from trimtab.trainer.checkpoints.index import CheckpointDamaged
from trimtab.trainer.learner import Learner, rate_factor
from trimtab.trainer.network.adapters import attach
from trimtab.trainer.network.model_files import UnsupportedModel
from trimtab.weights.merging import merge_into

PROMPT = [1, 2, 3]
# A bound on the norm of all gradients would be another one for the whole model.
UNBOUNDED = {"optimizer": {"learningRate": 1e-2, "weightDecay": 0.01, "epsilon": 1e-4, "maxGradNorm": 1e6}}
EXACT = 1e-5


class DenseReference:
    """The whole model as W + s·B·A, with adapters and an optimiser of its own. Of the gradient by each W, which is all
    that the whole model tells, those by its factors are s·Bᵀ·dW and s·dW·Aᵀ.
    """

    def __init__(self, model: Path, lora: Lora, first: dict[str, torch.Tensor]) -> None:
        plain = policy().model_dump(by_alias=True, exclude_none=True)
        plain["algorithm"] |= UNBOUNDED
        self._policy = Policy.model_validate(plain)
        self._dense = Learner(self._policy, model_path=model)
        self._dense.before_change = self._look
        self._base = {name: tensor.clone() for name, tensor in self._dense.model.state_dict().items()}
        self._scale = lora.scale
        self.adapters = {name: torch.nn.Parameter(tensor.clone()) for name, tensor in first.items()}
        settings = self._policy.algorithm.optimizer
        self._optimizer = torch.optim.AdamW(
            self.adapters.values(),
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
            eps=settings.epsilon,
        )
        self._by_weight: dict[str, torch.Tensor] = {}

    def _look(self) -> None:
        for name, parameter in self._dense.model.named_parameters():
            if parameter.grad is not None:
                self._by_weight[name] = parameter.grad.clone()

    def _pairs(self) -> dict[str, tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        downs = [name for name in self.adapters if name.endswith("lora_A.weight")]
        return {
            name.removeprefix("base_model.model.").replace("lora_A.", ""): (
                self.adapters[name],
                self.adapters[name.replace("lora_A", "lora_B")],
            )
            for name in downs
        }

    @torch.no_grad()
    def train(self, step: int) -> None:
        merged = dict(self._base)
        for weight, (down, up) in self._pairs().items():
            merged[weight] = self._base[weight] + self._scale * up @ down
        self._dense.model.load_state_dict(merged)
        with torch.enable_grad():
            train_on(self._dense, rows(SAMPLES, seed=step), of=SAMPLES)
        for weight, (down, up) in self._pairs().items():
            down.grad = self._scale * up.T @ self._by_weight[weight]
            up.grad = self._scale * self._by_weight[weight] @ down.T
        for group in self._optimizer.param_groups:
            group["lr"] = self._policy.algorithm.optimizer.learning_rate * rate_factor(
                self._policy.algorithm.schedule, step
            )
        self._optimizer.step()


def adapters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in learner.model.named_parameters()}


def engine_for(learner_policy: Policy, model: Path) -> EngineModel:
    lora = learner_policy.lora
    assert lora is not None
    shape = AdapterShape(rank=lora.rank, alpha=lora.full_alpha, targets=frozenset(lora.targets))
    return EngineModel(model, device="cpu", adapters=shape)


def engine_scores(engine: EngineModel, tokens: list[int]) -> torch.Tensor:
    piece = Piece(tokens=torch.tensor([tokens]), cache=engine.kv_shape.zeros(1, len(tokens)), start=0)
    return torch.log_softmax(engine.extend([piece])[0], dim=-1)


@pytest.mark.parametrize(
    "lora",
    [pytest.param({"rank": 4}, marks=pytest.mark.slow), {"rank": 3, "alpha": 5.0, "targets": ["q_proj", "down_proj"]}],
)
def test_the_update_is_that_of_the_whole_model_restricted_to_the_adapters(model: Path, lora: dict[str, Any]) -> None:
    asked = adapting(lora, algorithm=UNBOUNDED)
    assert asked.lora is not None
    learner = Learner(asked, model_path=model)
    begun = adapters(learner)
    reference = DenseReference(model, asked.lora, begun)
    for step in range(3):
        train(learner, steps=range(step, step + 1))
        reference.train(step)
    for name, tensor in adapters(learner).items():
        torch.testing.assert_close(tensor, reference.adapters[name].detach(), rtol=1e-3, atol=1e-4)
        assert (tensor - begun[name]).abs().max() > 1e-3, f"{name} has not moved"


def test_only_the_adapters_move(model: Path) -> None:
    learner = Learner(adapting({"targets": ["q_proj", "up_proj"]}), model_path=model)
    frozen = {name: tensor for name, tensor in learner.network.causal_lm.state_dict().items() if "lora" not in name}
    before = {name: tensor.clone() for name, tensor in frozen.items()}
    begun = adapters(learner)
    assert {name.split(".")[-3] for name in begun} == {"q_proj", "up_proj"}
    train(learner, steps=range(2))
    assert same(frozen, before)
    assert all(not torch.equal(tensor, begun[name]) for name, tensor in adapters(learner).items())
    optimised = [parameter for group in learner.optimizer.param_groups for parameter in group["params"]]
    assert {id(parameter) for parameter in optimised} == {id(parameter) for parameter in learner.model.parameters()}


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_an_engine_adds_what_was_published_and_scores_as_the_trainer(model: Path, tmp_path: Path, dtype: str) -> None:
    """The mismatch is what it is without adapters."""
    asked = adapting(dtype=dtype)
    learner = Learner(asked, model_path=model)
    engine = engine_for(asked, model)
    untouched = engine_scores(engine, PROMPT)
    for step in range(3):
        publish(learner, tmp_path / str(step))
        engine.install(engine.stage(tmp_path / str(step)))
        merge_into(model, tmp_path / str(step) / "model.safetensors", tmp_path / f"merged-{step}")
        served = LlamaForCausalLM.from_pretrained(tmp_path / f"merged-{step}", dtype=torch.float32)
        torch.testing.assert_close(engine_scores(engine, PROMPT), scored(served, PROMPT), rtol=0, atol=EXACT)
        outcome = train_on(learner, sampled(served, version=step, seed=step), of=8)
        assert outcome.measures.sampling_drift < EXACT
        assert outcome.measures.logprob_mismatch is not None
        assert outcome.measures.logprob_mismatch < EXACT
    assert (engine_scores(engine, PROMPT) - untouched).abs().max() > 100 * EXACT


def test_the_model_itself_is_served_again_without_adapters(model: Path, tmp_path: Path) -> None:
    asked = adapting()
    engine = engine_for(asked, model)
    untouched, first = engine_scores(engine, PROMPT), engine.checksum()
    learner = Learner(asked, model_path=model)
    publish(learner, tmp_path / "begun")
    engine.install(engine.stage(tmp_path / "begun"))
    assert torch.equal(engine_scores(engine, PROMPT), untouched), "adapters begin at nothing"
    train(learner, steps=range(1))
    publish(learner, tmp_path / "trained")
    engine.install(engine.stage(tmp_path / "trained"))
    assert not torch.equal(engine_scores(engine, PROMPT), untouched)
    engine.install(engine.stage(model))
    assert torch.equal(engine_scores(engine, PROMPT), untouched)
    assert engine.checksum() == first


def test_adapters_that_an_engine_has_no_room_for_are_refused(model: Path, tmp_path: Path) -> None:
    publish(Learner(adapting({"rank": 4}), model_path=model), tmp_path)
    with pytest.raises(WeightMismatchError, match="--lora-rank"):
        EngineModel(model, device="cpu").stage(tmp_path)
    with pytest.raises(WeightMismatchError, match="adapters of rank 4 and alpha 8.*started for rank 8"):
        engine_for(adapting({"rank": 8}), model).stage(tmp_path)


@pytest.mark.slow
def test_a_restored_learner_goes_on_bit_for_bit_from_a_small_checkpoint(model: Path, tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "shelf")
    learner = Learner(adapting(), model_path=model)
    train(learner, steps=range(2))
    shelf.save(learner)
    restored = Learner(adapting(), model_path=model)
    shelf.restore(restored)
    assert restored.step == 2
    assert same(state_of(restored), state_of(learner))
    train(learner, steps=range(2, 4))
    train(restored, steps=range(2, 4))
    assert same(state_of(restored), state_of(learner))
    saved = sum(file.stat().st_size for file in (tmp_path / "shelf").rglob("*") if file.is_file())
    model_bytes = sum(file.stat().st_size for file in model.glob("*.safetensors"))
    assert saved < model_bytes, "model and moments would be three times the model"
    with pytest.raises(CheckpointDamaged, match="no fitting"):
        shelf.restore(Learner(policy(), model_path=model))


def test_a_penalty_is_on_the_distance_to_the_model_without_adapters(model: Path) -> None:
    learner = Learner(adapting(algorithm={"kl": {"coefficient": 0.1}}), model_path=model)
    first = train_on(learner, rows(SAMPLES, seed=0), of=SAMPLES)
    assert first.measures.reference_kl == 0.0
    second = train_on(learner, rows(SAMPLES, seed=1), of=SAMPLES)
    assert second.measures.reference_kl is not None
    assert second.measures.reference_kl > 0
    same_model = Learner(adapting(algorithm={"kl": {"coefficient": 0.1}}), model_path=model, reference_path=model)
    train(same_model, steps=range(2))
    torch.testing.assert_close(adapters(same_model), adapters(learner), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
async def test_ranks_train_the_same_adapters_as_one(
    rank_template: TemplateProcess, model: Path, tmp_path: Path
) -> None:
    await run_ranks(rank_template, adapting_rank, model, tmp_path, world_size=2)
    alone = Learner(adapting(), model_path=model)
    train(alone, steps=range(2))
    mine, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert same(mine, other)
    torch.testing.assert_close(mine, adapters(alone), rtol=1e-4, atol=2e-5)


@pytest.mark.slow
async def test_a_spread_model_may_be_in_half_precision_beside_its_adapters(
    rank_template: TemplateProcess, model: Path, tmp_path: Path
) -> None:
    await run_ranks(rank_template, half_precision_rank, model, tmp_path, world_size=2)
    mine, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in range(2))
    assert same(mine, other)
    assert all("lora" in name and gradient.dtype is torch.float32 for name, gradient in mine.items())
    assert all(gradient.any() for name, gradient in mine.items() if "lora_B" in name)


def test_a_target_that_the_model_does_not_have_is_named() -> None:
    fused = torch.nn.ModuleDict({"qkv_proj": torch.nn.Linear(2, 6), "o_proj": torch.nn.Linear(2, 2)})
    with pytest.raises(UnsupportedModel, match=r"policies\[\]\.lora\.targets: ModuleDict has no q_proj; leave"):
        attach(fused, Lora(rank=1, targets=("q_proj", "o_proj")), computing=torch.float32)
