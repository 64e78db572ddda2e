"""When a learner looks at rows before their gradients: as they arrive, and only where something is decided first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer.cut_episodes import leased_step
from tests.support.trainer.cut_update import ALGORITHMS, policy_with
from trimtab.api.policy import Policy
from trimtab.trainer.learner import Learner
from trimtab.trainer.recipes import policy_recipe


class Passes:
    """Counts the passes of the network, with and without gradient."""

    def __init__(self, learner: Learner) -> None:
        self.looks = self.gradients = 0
        learner.network.register_forward_pre_hook(self._count)

    def _count(self, network: torch.nn.Module, arguments: Any) -> None:
        if torch.is_grad_enabled():
            self.gradients += 1
        else:
            self.looks += 1


def test_m2po_has_looked_at_everything_when_the_last_portion_has_arrived(model: Path) -> None:
    made = policy_with(ALGORITHMS["m2po"])
    learner = Learner(made, model_path=model)
    passes = Passes(learner)
    step = leased_step(made, step=0, cut_seed=3, portions=3)
    seen = []
    for rows in step.portions:
        learner.accumulate(rows)
        seen.append(passes.looks)
    assert 0 < seen[0] < seen[1] < seen[2]
    assert passes.gradients == 0
    learner.update(step.totals)
    assert passes.looks == seen[2]
    assert 0 < passes.gradients < seen[2], "portions make small packs, and their gradients need not"


def test_gradients_of_many_portions_take_as_many_passes_as_those_of_one(model: Path) -> None:
    made = policy_with(ALGORITHMS["m2po"])
    taken = []
    for portions in (1, 6):
        learner = Learner(made, model_path=model)
        passes = Passes(learner)
        step = leased_step(made, step=0, cut_seed=3, portions=portions)
        for rows in step.portions:
            learner.accumulate(rows)
        learner.update(step.totals)
        taken.append(passes.gradients)
    assert taken[0] == taken[1]


@pytest.mark.parametrize("algorithm", ["grpo", "dapo", "rloo", "distill", "custom", "grpo-kl-stage"])
def test_gradients_of_a_portion_do_not_wait_for_the_next(model: Path, algorithm: str) -> None:
    made = policy_with(ALGORITHMS[algorithm])
    check_streams(made, Learner(made, model_path=model, recipe=policy_recipe(made, folder=None)))


def test_nor_do_they_with_a_critic(model: Path) -> None:
    critic = {"stage": "logprobs"}
    for name in ("ppo", "critic"):
        made = policy_with({"name": name, "critic": critic})
        check_streams(made, Learner(made, model_path=model))


def check_streams(policy: Policy, learner: Learner) -> None:
    passes = Passes(learner)
    step = leased_step(policy, step=0, cut_seed=None, portions=3)
    seen = []
    for rows in step.portions:
        learner.accumulate(rows)
        seen.append(passes.gradients)
    assert 0 < seen[0] < seen[1] < seen[2]
    learner.update(step.totals)
    assert passes.gradients == seen[2], "nothing was left to do but the update"


def test_several_updates_of_a_batch_have_been_looked_at_when_the_last_portion_has_arrived(model: Path) -> None:
    made = policy_with(ALGORITHMS["ppo-updates"])
    learner = Learner(made, model_path=model)
    passes = Passes(learner)
    step = leased_step(made, step=0, cut_seed=3, portions=3)
    seen = []
    for rows in step.portions:
        learner.accumulate(rows)
        seen.append(passes.looks)
    assert 0 < seen[0] < seen[1] < seen[2]
    learner.update(step.totals)
    assert passes.looks == seen[2], "each update has only its gradient left to do"
    assert passes.gradients > 0


@pytest.mark.parametrize(
    ("algorithm", "cut_seed", "looks"),
    [("gspo", None, False), ("gspo", 3, True), ("grpo", 3, False), ("gspo-turn", 3, True)],
)
def test_answers_are_looked_at_where_their_ratio_is_asked_for_and_they_are_cut(
    model: Path, algorithm: str, cut_seed: int | None, looks: bool
) -> None:
    made = policy_with(ALGORITHMS[algorithm])
    learner = Learner(made, model_path=model)
    passes = Passes(learner)
    step = leased_step(made, step=0, cut_seed=cut_seed)
    learner.accumulate(step.portions[0])
    assert (passes.looks > 0) is looks
    assert passes.gradients > 0, "gradients do not wait for the rest of the step"
