"""The update is the same however a step is cut up and dealt; checkpoints and weights carry it exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch.distributed.checkpoint import state_dict_loader
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.support.trainer.samples import policy, rows, train_on
from tests.support.trainer.shelf import Shelf
from tests.support.trainer.storages import same, state_of
from trimtab.api.policy import Policy
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.transformer import Piece
from trimtab.trainer.batch import blank_row, sole_row
from trimtab.trainer.checkpoints.index import CheckpointDamaged
from trimtab.trainer.checkpoints.staging import Staging
from trimtab.trainer.checkpoints.state import tensors_of
from trimtab.trainer.learner import Learner, TrainingDiverged, UnsupportedAlgorithm
from trimtab.trainer.model_weights import ModelWeights
from trimtab.trainer.network.model_files import UnsupportedModel

STEPS = 3


def parameters(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.model.named_parameters()}


def train(learner: Learner, *, steps: range) -> None:
    for step in steps:
        train_on(learner, rows(12, seed=step), of=12)


@pytest.fixture(scope="module")
def one_rank(model: Path) -> dict[str, torch.Tensor]:
    learner = Learner(policy(), model_path=model)
    before = parameters(learner)
    train(learner, steps=range(STEPS))
    after = parameters(learner)
    assert any(not torch.equal(before[name], after[name]) for name in before)
    return after


def test_a_step_that_comes_in_portions_makes_the_same_update(model: Path, one_rank: dict[str, torch.Tensor]) -> None:
    learner = Learner(policy(), model_path=model)
    for step in range(STEPS):
        made = rows(12, seed=step)
        train_on(learner, made[:3], made[3:4], made[4:], of=12)
    for name, tensor in parameters(learner).items():
        torch.testing.assert_close(tensor, one_rank[name], rtol=1e-4, atol=1e-5)


def test_micro_batches_do_not_change_the_update(model: Path, one_rank: dict[str, torch.Tensor]) -> None:
    learner = Learner(policy(microBatchTokens=4096), model_path=model)
    train(learner, steps=range(STEPS))
    for name, tensor in parameters(learner).items():
        torch.testing.assert_close(tensor, one_rank[name], rtol=1e-4, atol=1e-5)


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf")


def test_a_restored_learner_goes_on_bit_for_bit(model: Path, shelf: Shelf) -> None:
    learner = Learner(policy(), model_path=model)
    train(learner, steps=range(2))
    saved = state_of(learner)
    shelf.save(learner)
    assert shelf.acknowledged == [1]
    restored = Learner(policy(), model_path=model)
    shelf.restore(restored)
    assert restored.step == 2
    assert same(state_of(restored), saved)
    train(learner, steps=range(2, 4))
    train(restored, steps=range(2, 4))
    assert same(state_of(restored), state_of(learner))
    # The optimiser's moments matter: without them the next step would be another one.
    forgetful = Learner(policy(), model_path=model)
    shelf.restore(forgetful)
    forgetful.optimizer.state.clear()
    train(forgetful, steps=range(2, 4))
    assert not same(state_of(forgetful), state_of(learner))


def test_the_checkpoint_of_another_model_is_refused(model: Path, tmp_path: Path, shelf: Shelf) -> None:
    config = LlamaConfig.from_pretrained(model)
    config.hidden_size = 32
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    shelf.save(Learner(policy(), model_path=tmp_path))
    with pytest.raises(CheckpointDamaged, match=r"policies\[\].model"):
        shelf.restore(Learner(policy(), model_path=model))


def test_torch_reads_the_files_as_its_own(model: Path, tmp_path: Path) -> None:
    """What is written is a torch distributed checkpoint: any tool for them can read it."""
    learner = Learner(policy(), model_path=model)
    train(learner, steps=range(1))
    staged = Staging().copy(tensors_of(learner, rank=0))
    (tmp_path / "rank.safetensors").write_bytes(b"".join(map(staged.part, range(len(staged.blocks)))))
    read = {name: torch.zeros_like(tensor) for name, tensor in learner.model.named_parameters()}
    with pytest.warns(UserWarning, match="single process"):
        state_dict_loader.load(dict(read), storage_reader=HuggingFaceStorageReader(str(tmp_path)), no_dist=True)
    assert same(read, parameters(learner))


def test_a_copy_stays_as_it_is_while_training_goes_on(model: Path) -> None:
    learner = Learner(policy(), model_path=model)
    train(learner, steps=range(1))
    staged = Staging().copy(tensors_of(learner, rank=0))
    before = staged.part(0)
    train(learner, steps=range(1, 2))
    assert staged.part(0) == before
    assert Staging().copy(tensors_of(learner, rank=0)).part(0) != before


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    ("computed", "dtype"),
    [("float32", "float32"), ("bfloat16", "bfloat16"), ("float32", "bfloat16")],
    ids=["float32", "bfloat16", "computed in float32"],
)
def test_published_weights_load_into_an_engine_exactly(
    model: Path, tmp_path: Path, tied: bool, computed: str, dtype: str
) -> None:
    config = LlamaConfig.from_pretrained(model)
    config.tie_word_embeddings = tied
    torch.manual_seed(1)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    own = {} if computed == dtype else {"publish": {"dtype": dtype}}
    learner = Learner(policy(dtype=computed, **own), model_path=tmp_path / "base")
    train(learner, steps=range(1))
    weights = learner.weights()
    assert isinstance(weights, ModelWeights)
    data = np.empty(weights.layout.data_bytes, dtype=np.uint8)
    for block in weights.layout.blocks:
        weights.read(block, data[block.start : block.end])
    published = weights.layout.prefix + data.tobytes()
    assert ("lm_head.weight" in load(published)) is not tied
    assert {tensor.dtype for tensor in load(published).values()} == {getattr(torch, dtype)}
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "model.safetensors").write_bytes(published)
    engine = EngineModel(tmp_path / "base", device="cpu")
    engine.install(engine.stage(tmp_path / "new"))
    prompt = torch.tensor([[1, 2, 3]])
    # What is published is the learner's weights, rounded once to the published type.
    reference = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    rounded = {name: t.to(getattr(torch, dtype)).float() for name, t in learner.model.state_dict().items()}
    reference.load_state_dict(rounded)
    with torch.inference_mode():
        expected = reference(prompt).logits[0, -1]
    piece = Piece(tokens=prompt, cache=engine.kv_shape.zeros(1, 3), start=0)
    torch.testing.assert_close(engine.extend([piece])[0], expected, rtol=0, atol=1e-5)
    assert {parameter.dtype for parameter in learner.model.parameters()} == {torch.float32}


def test_a_step_that_is_not_finite_is_skipped_and_too_many_end_the_training(model: Path) -> None:
    learner = Learner(policy(maxSkippedSteps=1), model_path=model)
    before = parameters(learner)
    poisoned = [replace(row, advantages=np.full_like(row.advantages, np.inf)) for row in rows(4, seed=0)]
    outcome = train_on(learner, poisoned, of=4)
    assert outcome.skipped
    assert learner.step == 1
    assert all(torch.equal(before[name], tensor) for name, tensor in parameters(learner).items())
    with pytest.raises(TrainingDiverged, match="learningRate"):
        train_on(learner, poisoned, of=4)


def test_a_penalty_may_be_on_the_distance_to_another_model(model: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    LlamaForCausalLM(LlamaConfig.from_pretrained(model)).save_pretrained(tmp_path)
    algorithm = {"name": "grpo", "kl": {"coefficient": 0.1}}
    penalised = type(policy()).model_validate(policy().model_dump(by_alias=True) | {"algorithm": algorithm})
    distances = [
        train_on(Learner(penalised, model_path=model, reference_path=reference), rows(4, seed=0), of=4)
        for reference in (None, tmp_path)
    ]
    own, other = (outcome.measures.reference_kl for outcome in distances)
    assert own == 0.0, "it starts where it starts"
    assert other > 0.01


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"sampling": {"temperature": 0}}, "sampling.temperature"),
    ],
    ids=str,
)
def test_what_it_does_not_do_is_refused_by_name(model: Path, changes: dict[str, object], field: str) -> None:
    changed = type(policy()).model_validate(policy().model_dump(by_alias=True, exclude_none=True) | changes)
    with pytest.raises(UnsupportedAlgorithm, match=field):
        Learner(changed, model_path=model)


def test_rows_are_as_long_as_the_manifest_lets_the_model_read(model: Path) -> None:
    def told(tokens: int) -> Policy:
        plain = policy().model_dump(by_alias=True, exclude_none=True)
        return Policy.model_validate(plain | {"model": {"uri": "model", "maxContextTokens": tokens}})

    most = Learner(policy(), model_path=model).row_limits.longest
    assert Learner(told(7), model_path=model).row_limits.longest == 7
    with pytest.raises(UnsupportedModel, match=rf"policies\[solver\].model.maxContextTokens: {most + 1} is more"):
        Learner(told(most + 1), model_path=model)


def test_a_step_whose_rows_were_all_set_aside_is_a_step_and_spoils_nothing(model: Path) -> None:
    learner = Learner(policy(), model_path=model)
    train(learner, steps=range(1))
    outcome = train_on(
        learner, [blank_row(number, sole_row(number, np.ones(4, dtype=np.bool_))) for number in (1, 2)], of=2
    )
    assert learner.step == 2
    assert not outcome.skipped
    assert all(torch.isfinite(tensor).all() for tensor in parameters(learner).values())
