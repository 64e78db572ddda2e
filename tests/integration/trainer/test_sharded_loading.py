"""A rank reads its own part of a model's files: the weights are right, and memory is what its part takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from tests.support.template_process import TemplateProcess
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.loading_ranks import make_model, run_rank
from tests.support.trainer.samples import policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.network.model_files import UnsupportedModel


@pytest.fixture(scope="module")
def large_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    make_model(folder)
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


async def loaded(template: TemplateProcess, model: Path, folder: Path, *, count: int) -> list[dict[str, torch.Tensor]]:
    target = folder / str(count)
    target.mkdir()
    await run_ranks(template, run_rank, model, target, count == 1, world_size=count)
    return [load_file(target / f"{rank}.safetensors") for rank in range(count)]


@pytest.mark.slow
async def test_the_memory_of_a_rank_is_that_of_its_part(
    rank_template: TemplateProcess, large_model: Path, tmp_path: Path
) -> None:
    (alone,) = await loaded(rank_template, large_model, tmp_path, count=1)
    assert alone["peak"] > alone["held"], "all of it is counted"
    for count in (2, 4):
        ranks = await loaded(rank_template, large_model, tmp_path, count=count)
        for rank in ranks:
            assert rank["held"] < 1.1 * alone["held"] / count
            # Besides its part it takes a fifth at most, whatever the number: for the proof and the group's own buffers.
            assert rank["peak"] < (1 / count + 0.2) * alone["peak"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
async def test_the_weights_are_those_in_the_files(
    rank_template: TemplateProcess, model: Path, tmp_path: Path, count: int
) -> None:
    (tmp_path / "told").mkdir()
    await run_ranks(rank_template, run_rank, model, tmp_path / "told", True, world_size=count)
    reference = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    for rank in range(count):
        told = load_file(tmp_path / "told" / f"{rank}.safetensors")
        for name, tensor in reference.named_parameters():
            assert torch.equal(told[name], tensor), name


@pytest.fixture
def copied(model: Path, tmp_path: Path) -> Path:
    LlamaForCausalLM(LlamaConfig.from_pretrained(model)).save_pretrained(tmp_path)
    return tmp_path


def test_a_model_that_lacks_a_tensor_is_refused_by_its_name(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, copied / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=r"has no tensor model.layers.0.mlp.up_proj.weight; save the whole"):
        Learner(policy(), model_path=copied)


def test_weights_of_another_shape_are_refused(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text())
    config["intermediate_size"] *= 2
    (copied / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModel, match=r"has the shape \[.*\], the configuration asks for"):
        Learner(policy(), model_path=copied)


def test_quantised_weights_are_refused(copied: Path) -> None:
    tensors = load_file(copied / "model.safetensors")
    save_file({name: tensor.to(torch.float8_e4m3fn) for name, tensor in tensors.items()}, copied / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="is stored as F8_E4M3"):
        Learner(policy(), model_path=copied)


@pytest.mark.parametrize(
    ("index", "says"),
    [
        (None, "neither model.safetensors nor model.safetensors.index.json"),
        ('{"weight_map": {"a": "../other.safetensors"}}', "names ../other.safetensors, which is not in its folder"),
        ('{"weight_map": {"a": "gone.safetensors"}}', "has no gone.safetensors, which its index names"),
        ("[]", "is not an index of weights"),
    ],
)
def test_files_that_cannot_be_used_are_named(copied: Path, index: str | None, says: str) -> None:
    (copied / "model.safetensors").unlink()
    if index is not None:
        (copied / "model.safetensors.index.json").write_text(index)
    with pytest.raises(UnsupportedModel, match=rf"policies\[\].model.uri: .*{says}"):
        Learner(policy(), model_path=copied)
