"""Samples eight versions old: the algorithms made for stale data still learn from them, and a tight clip does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.learning.known_optimum import KnownTask
from tests.support.learning.learning_run import Run, learn, word_setting
from trimtab.api.algorithm import AlgorithmName

pytestmark = pytest.mark.slow

STALENESS = 8
NEAR = 0.9
SEED = 1


def stale_run(name: AlgorithmName, task: KnownTask, model: Path) -> Run:
    return learn(word_setting(name, staleness=STALENESS), task, model_path=model, seed=SEED)


@pytest.mark.parametrize("name", ["m2po", "ppo"])
def test_it_still_comes_near_the_best_reward(name: AlgorithmName, word_task: KnownTask, word_model: Path) -> None:
    run = stale_run(name, word_task, word_model)
    assert run.steps_to(NEAR * word_task.best) is not None


def test_a_clip_around_the_policy_that_sampled_cuts_off_what_teaches(word_task: KnownTask, word_model: Path) -> None:
    """gspo's is the tightest: three ten-thousandths. So staleness is felt here, and surviving it means something."""
    run = stale_run("gspo", word_task, word_model)
    assert run.steps_to(NEAR * word_task.best) is None
    assert run.last_reward > run.rewards[0] + 0.3
