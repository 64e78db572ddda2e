"""An episode that is cut into rows makes the update of a whole one, for every algorithm and however a step comes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.support.template_process import TemplateProcess
from tests.support.trainer.cut_episodes import leased_step
from tests.support.trainer.cut_update import ALGORITHMS, policy_with, run_rank, trained
from tests.support.trainer.forked_ranks import run_ranks

Weights = dict[str, torch.Tensor]
TOLERANCE = 1e-6


QUICK = ("grpo", "m2po", "ppo-updates")


@pytest.fixture(scope="module")
def as_whole(model: Path) -> Callable[[str], Weights]:
    return functools.cache(lambda algorithm: trained(model, algorithm, cut_seed=None))


def check_same(mine: Weights, theirs: Weights) -> None:
    assert max(tensor.abs().max().item() for tensor in theirs.values()) > 1000 * TOLERANCE, "nothing was learnt"
    for name, tensor in theirs.items():
        torch.testing.assert_close(mine[name], tensor, rtol=0, atol=TOLERANCE, msg=name)


def test_rows_of_a_cut_train_every_token_once() -> None:
    """What the other tests compare would be worth nothing if episodes were not cut."""
    grpo = policy_with(ALGORITHMS["grpo"])
    uncut, cut = (leased_step(grpo, step=0, cut_seed=seed) for seed in (None, 3))
    assert cut.totals.samples > 1.5 * uncut.totals.samples
    assert cut.totals.episodes == uncut.totals.episodes == uncut.totals.samples
    assert cut.totals.trained_tokens == uncut.totals.trained_tokens
    assert cut.totals.tokens > uncut.totals.tokens


@pytest.mark.parametrize("algorithm", [QUICK[0], *(pytest.param(name, marks=pytest.mark.slow) for name in QUICK[1:])])
def test_a_cut_changes_nothing(model: Path, as_whole: Callable[[str], Weights], algorithm: str) -> None:
    check_same(trained(model, algorithm, cut_seed=3, micro_batch_tokens=64, portions=3), as_whole(algorithm))


@pytest.mark.slow
@pytest.mark.parametrize(("micro_batch_tokens", "portions"), [(4096, 1), (64, 3), (100, 2)])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_cut_changes_anything(
    model: Path, as_whole: Callable[[str], Weights], algorithm: str, micro_batch_tokens: int, portions: int
) -> None:
    for seed in range(4, 8):
        cut = trained(model, algorithm, cut_seed=seed, micro_batch_tokens=micro_batch_tokens, portions=portions)
        check_same(cut, as_whole(algorithm))


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
async def test_rows_of_an_episode_may_lie_on_different_ranks(
    rank_template: TemplateProcess, model: Path, tmp_path: Path, as_whole: Callable[[str], Weights], world_size: int
) -> None:
    await run_ranks(rank_template, run_rank, model, tmp_path, world_size=world_size)
    for name in ALGORITHMS:
        together = [load_file(tmp_path / f"{name}.{rank}.safetensors") for rank in range(world_size)]
        check_same(together[0], as_whole(name))
