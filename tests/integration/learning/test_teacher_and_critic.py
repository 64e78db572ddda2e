"""A student comes to answer as its teacher does; a policy with a critic learns the words, without comparing samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaForCausalLM

from tests.support.learning.critic_run import learn_with_critic, teacher
from tests.support.learning.known_optimum import KnownTask, answer_probabilities, make_model
from tests.support.learning.learning_run import Setting, learn, shuffled

SEED = 1


@pytest.fixture(scope="module")
def opinionated_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("teacher")
    make_model(folder, seed=5, spread=0.5)
    return folder


def divergence(student: torch.Tensor, teaching: torch.Tensor) -> float:
    """Of whole answers, mean over the prompts."""
    return float((student * (student / teaching).log()).sum(dim=1).mean())


def distilled(task: KnownTask, model: Path, teaching: Path, *, steps: int, staleness: int = 0) -> tuple[float, float]:
    """How far the student is from its teacher before and after."""
    setting = Setting(
        algorithm={"name": "distill", "distill": {"stage": "teacher"}},
        steps=steps,
        learning_rate=5e-3,
        staleness=staleness,
    )
    run = learn(setting, task, model_path=model, seed=SEED, stages={"teacher": teacher(teaching)})
    wanted = answer_probabilities(LlamaForCausalLM.from_pretrained(teaching, dtype=torch.float32), task)
    return divergence(run.begin, wanted), divergence(run.end, wanted)


@pytest.mark.slow
def test_a_student_nears_its_teacher(word_task: KnownTask, word_model: Path, opinionated_teacher: Path) -> None:
    before, after = distilled(word_task, word_model, opinionated_teacher, steps=25)
    assert after < 0.5 * before


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 4])
def test_a_student_becomes_its_teacher(
    word_task: KnownTask, word_model: Path, opinionated_teacher: Path, staleness: int
) -> None:
    before, after = distilled(word_task, word_model, opinionated_teacher, steps=200, staleness=staleness)
    assert before > 0.1
    assert after < 0.05 * before


@pytest.mark.slow
def test_a_policy_with_a_critic_begins_to_learn(word_task: KnownTask, word_model: Path) -> None:
    run, critic = learn_with_critic(word_task, model_path=word_model, seed=SEED, steps=20)
    assert run.last_reward > 1.5 * run.rewards[0]
    assert critic.measures[-1].values_staleness == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, 4])
def test_a_policy_with_a_critic_reaches_the_best_reward(word_task: KnownTask, word_model: Path, staleness: int) -> None:
    """Samples and values are both so many versions old."""
    run, critic = learn_with_critic(word_task, model_path=word_model, seed=SEED, staleness=staleness)
    assert run.rewards[0] < 0.2
    assert run.last_reward > word_task.best - 0.12
    assert critic.measures[-1].values_staleness == staleness


@pytest.mark.slow
def test_with_the_advantages_of_others_nothing_is_learned(word_task: KnownTask, word_model: Path) -> None:
    run, _ = learn_with_critic(word_task, model_path=word_model, seed=SEED, steps=60, reshape=shuffled(SEED))
    assert max(run.rewards.values()) < 0.25
