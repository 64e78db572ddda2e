"""A run of the real learner on a task with a known optimum, on samples of weights that are so many versions old."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

from tests.support.learning.known_optimum import (
    END,
    VOCABULARY,
    KnownTask,
    answer_probabilities,
    next_token_logits,
)
from trimtab.api.algorithm import AlgorithmName
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group, StepTotals
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner
from trimtab.trainer.recipes import policy_recipe
from trimtab.trainer.row_rewards import RowRewards

_MEASURED_EVERY = 5
_EXPLORING = {"entropyCoefficient": 0.03}
"""Without a bonus for entropy some runs settle on a wrong letter before the right one was ever drawn."""

Reshape = Callable[[list[Row]], list[Row]]


ALGORITHMS: tuple[AlgorithmName, ...] = tuple(
    name for name in get_args(AlgorithmName) if name not in ("distill", "critic", "custom")
)
"""Those that compare the rewards of a group, and need nothing else."""
Stage = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.float32]]
"""From the token ids of several rows to a number for each token; what comes after the end of a row does not matter."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is made of, besides its task and seed. `algorithm` is as in a manifest."""

    algorithm: Mapping[str, Any]
    steps: int
    learning_rate: float
    staleness: int = 0
    group_size: int = 32
    groups: int = 1
    """Of each prompt in a step."""

    def policy(self, task: KnownTask) -> Policy:
        """The rate decays to nothing, and a gradient that vanishes is not blown up to a whole step by Adam: a run that
        has arrived stays.
        """
        optimizer = {"learningRate": self.learning_rate, "beta2": 0.99, "epsilon": 1e-5, "maxGradNorm": 100.0}
        schedule = {"type": "Linear", "decaySteps": self.steps}
        return Policy.model_validate(
            {
                "name": "learner",
                "model": {"uri": "model"},
                "algorithm": {"optimizer": optimizer, "schedule": schedule, **self.algorithm},
                "sampling": {"maxTokens": task.longest},
                "trainer": {"dtype": "float32", "gradientCheckpointing": False},
            }
        )


@dataclass(frozen=True, kw_only=True)
class Run:
    """`rewards` are exact expected rewards after so many steps, from none to all of them."""

    rewards: Mapping[int, float]
    begin: torch.Tensor
    end: torch.Tensor
    """Probabilities of all answers before and after, by prompt."""

    def steps_to(self, reward: float) -> int | None:
        """Until it is first seen to be reached."""
        return next((step for step, reached in self.rewards.items() if reached >= reward), None)

    @property
    def last_reward(self) -> float:
        return self.rewards[max(self.rewards)]


def word_setting(name: str, *, staleness: int = 0) -> Setting:
    """The one in which all algorithms are compared: everything but the loss is the same."""
    algorithm = {"name": name, **_EXPLORING}
    return Setting(algorithm=algorithm, steps=150, learning_rate=2.5e-3, staleness=staleness)


class Sampler:
    """Draws answers from weights of any version, as an engine would: with the logprob of every token it drew."""

    def __init__(
        self,
        model_path: Path,
        task: KnownTask,
        advantages: AdvantageRule,
        *,
        seed: int,
        stages: Mapping[str, Stage] | None = None,
    ) -> None:
        self._model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._task = task
        self._advantages = advantages
        self._stages = stages or {}
        self._chance = torch.Generator().manual_seed(seed)
        self._worth = [dict(zip(task.answers, row, strict=True)) for row in task.reward_table.tolist()]

    def rows(self, weights: Mapping[str, torch.Tensor], setting: Setting, *, version: int) -> list[Row]:
        self._model.load_state_dict(weights)
        prompts = torch.arange(len(self._task.prompts)).repeat_interleave(setting.groups)
        asked = prompts.repeat_interleave(setting.group_size)
        ids = torch.tensor(self._task.prompts)[asked]
        logprobs = torch.zeros(ids.shape)
        said = torch.zeros_like(asked)
        """The number of what was drawn so far."""
        for logits in next_token_logits(self._model, self._task):
            following = torch.log_softmax(logits[asked, said].float(), dim=-1)
            drawn = torch.multinomial(following.exp(), 1, generator=self._chance)
            ids = torch.cat([ids, drawn], dim=1)
            logprobs = torch.cat([logprobs, following.gather(1, drawn)], dim=1)
            said = said * VOCABULARY + drawn[:, 0]
        token_ids, token_logprobs = ids.numpy().astype(np.int32), logprobs.numpy()
        columns = {stage: compute(token_ids) for stage, compute in self._stages.items()}
        rows: list[Row] = []
        for prompt in prompts.tolist():
            part = slice(len(rows), len(rows) + setting.group_size)
            said_of = {stage: values[part] for stage, values in columns.items()}
            rows += self._group(
                prompt, token_ids[part], token_logprobs[part], said_of, version=version, first_key=len(rows)
            )
        return rows

    def probabilities(self, weights: Mapping[str, torch.Tensor]) -> torch.Tensor:
        self._model.load_state_dict(weights)
        return answer_probabilities(self._model, self._task)

    def _group(
        self,
        prompt: int,
        ids: npt.NDArray[np.int32],
        logprobs: npt.NDArray[np.float32],
        columns: Mapping[str, npt.NDArray[np.float32]],
        *,
        version: int,
        first_key: int,
    ) -> list[Row]:
        asked = len(self._task.prompts[prompt])
        answers = [_until_end(tokens[asked:]) for tokens in ids.tolist()]
        rewards = tuple(self._worth[prompt][answer] for answer in answers)
        episodes = tuple(
            Episode(reward=reward, trained_tokens=len(answer)) for answer, reward in zip(answers, rewards, strict=True)
        )
        group = self._advantages.group(Group(group_id=f"g{prompt}", prompt_id=f"p{prompt}", episodes=episodes))
        rows = []
        for number, (answer, episode) in enumerate(zip(answers, episodes, strict=True)):
            length = asked + len(answer)
            mask = np.arange(length) >= asked
            advantages = np.zeros(length, dtype=np.float32)
            advantages[mask] = group.of(
                RowRewards(
                    reward=episode.reward,
                    episode=episode,
                    trained_tokens=len(answer),
                    logprobs=logprobs[number, :length][mask],
                    columns={stage: values[number, :length][mask] for stage, values in columns.items()},
                )
            )
            rows.append(
                Row(
                    key=first_key + number,
                    episode=sole_row(first_key + number, mask),
                    token_ids=ids[number, :length],
                    logprobs=logprobs[number, :length],
                    mask=mask,
                    versions=np.where(mask, version, -1),
                    advantages=advantages,
                    columns={
                        stage: np.where(mask, values[number, :length], 0.0).astype(np.float32)
                        for stage, values in columns.items()
                    },
                )
            )
        return rows


def learn(
    setting: Setting,
    task: KnownTask,
    *,
    model_path: Path,
    seed: int,
    reshape: Reshape = lambda rows: rows,
    stages: Mapping[str, Stage] | None = None,
) -> Run:
    """Step `n` trains on samples of version `n - staleness`, the first ones on samples of the start.

    `reshape` lets a control spoil what the samples teach, or another learner have them too.
    """
    policy = setting.policy(task)
    recipe = policy_recipe(policy, folder=None)
    learner = Learner(policy, model_path=model_path, recipe=recipe)
    sampler = Sampler(model_path, task, AdvantageRule.of(policy, recipe), seed=seed, stages=stages)
    versions = deque([_weights(learner)], maxlen=setting.staleness + 1)
    begin = end = sampler.probabilities(versions[-1])
    rewards = {0: task.expected_reward(begin)}
    for step in range(setting.steps):
        oldest = step + 1 - len(versions)
        rows = reshape(sampler.rows(versions[0], setting, version=oldest))
        learner.accumulate(rows)
        trained = sum(row.trained_tokens for row in rows)
        tokens = sum(len(row.token_ids) for row in rows)
        learner.update(
            StepTotals(
                samples=len(rows),
                groups=len(rows) // setting.group_size,
                episodes=len(rows),
                tokens=tokens,
                trained_tokens=trained,
            )
        )
        versions.append(_weights(learner))
        if learner.step % _MEASURED_EVERY == 0 or learner.step == setting.steps:
            end = sampler.probabilities(versions[-1])
            rewards[learner.step] = task.expected_reward(end)
    return Run(rewards=rewards, begin=begin, end=end)


def shuffled(seed: int) -> Reshape:
    """Each row gets the advantage of another one: as large as before, and of no meaning."""
    chance = np.random.default_rng(seed)

    def reshape(rows: list[Row]) -> list[Row]:
        order = chance.permutation(len(rows))
        return [
            replace(row, advantages=np.full_like(row.advantages, rows[other].advantages[-1]))
            for row, other in zip(rows, order, strict=True)
        ]

    return reshape


def _until_end(tokens: list[int]) -> tuple[int, ...]:
    return tuple(tokens[: tokens.index(END) + 1] if END in tokens else tokens)


def _weights(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in learner.model.state_dict().items()}
