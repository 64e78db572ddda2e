"""When a learner looks at rows before their gradients: as they arrive, and only where something is decided first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.trainer.cut_episodes import leased_step
from tests.support.trainer.cut_update import ALGORITHMS, policy_with
from trimtab.trainer.learner import Learner


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
    assert (passes.looks, passes.gradients) == (seen[2], seen[2])


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
