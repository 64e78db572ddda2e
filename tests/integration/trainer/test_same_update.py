"""Every algorithm makes the same update, in whatever micro-batches, portions and number of ranks a step comes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.forked_ranks import run_ranks
from tests.support.trainer.same_update import ALGORITHMS, SAMPLES, run_rank, step_rows, trained
from trimtab.trainer.learner import RowsMissing

Weights = dict[str, torch.Tensor]
QUICK = ("grpo", "dapo", "gspo", "grpo-kl-entropy", "grpo-normalized", "m2po-updates", "critic-updates")


@pytest.fixture(scope="module")
def alone(model: Path) -> Callable[[str], Weights]:
    return functools.cache(lambda algorithm: trained(model, algorithm))


def check_same(mine: Weights, theirs: Weights) -> None:
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=1e-4, atol=2e-5, msg=name)


@pytest.mark.slow
def test_algorithms_differ_from_one_another(alone: Callable[[str], Weights]) -> None:
    """What the other tests compare would be worth nothing if all were the same."""
    embeddings = {name: alone(name)["model.embed_tokens.weight"] for name in ALGORITHMS}
    for one, other in itertools.combinations(embeddings, 2):
        assert not torch.allclose(embeddings[one], embeddings[other], atol=2e-5), f"{one} and {other}"


@pytest.mark.parametrize(
    "algorithm", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ALGORITHMS]
)
def test_micro_batches_and_portions_change_nothing(
    model: Path, alone: Callable[[str], Weights], algorithm: str
) -> None:
    check_same(trained(model, algorithm, micro_batch_tokens=4096, portions=4), alone(algorithm))


@pytest.mark.slow
@pytest.mark.parametrize(("world_size", "idle_rank"), [(2, -1), (4, 1)])
async def test_ranks_make_the_same_update_as_one(
    rank_template: TemplateProcess,
    model: Path,
    tmp_path: Path,
    alone: Callable[[str], Weights],
    world_size: int,
    idle_rank: int,
) -> None:
    await run_ranks(rank_template, run_rank, model, tmp_path, idle_rank, world_size=world_size)
    for name in ALGORITHMS:
        together = [load_file(tmp_path / f"{name}.{rank}.safetensors") for rank in range(world_size)]
        check_same(together[0], alone(name))
        for other in together[1:]:
            assert all(torch.equal(other[key], together[0][key]) for key in other)


def test_a_row_that_is_missing_is_not_trained_over(model: Path) -> None:
    with pytest.raises(RowsMissing, match=f"step 0 has {SAMPLES} samples, the ranks had {SAMPLES - 1}"):
        trained(model, "grpo", rows_of=lambda step: step_rows(step)[1:])
