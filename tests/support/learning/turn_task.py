"""A task of several questions in a row whose outcome is good only when every answer was right. It never is, so from the
outcome alone there is nothing to learn; what each turn earned says which answer was right.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

from tests.support.learning.known_optimum import VOCABULARY
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group, StepTotals
from trimtab.fabric.wire.trajectory import TurnReward
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner
from trimtab.trainer.row_rewards import RowRewards

TURNS = 6
_QUESTIONS = 4


@dataclass(frozen=True, kw_only=True)
class Quiz:
    """One right answer for each question; an episode is `TURNS` questions, drawn anew for every group."""

    answers: tuple[int, ...]

    @classmethod
    def drawn(cls, seed: int) -> Quiz:
        return cls(answers=tuple(np.random.default_rng(seed).integers(0, VOCABULARY, _QUESTIONS).tolist()))


@dataclass(frozen=True, kw_only=True)
class TurnSetting:
    """What a run is made of, besides its seed. `algorithm` is as in a manifest."""

    algorithm: Mapping[str, Any]
    steps: int = 40
    learning_rate: float = 5e-3
    groups: int = 4
    group_size: int = 16

    def policy(self) -> Policy:
        """The rate decays to nothing: a run that has arrived stays."""
        schedule = {"type": "Linear", "decaySteps": self.steps}
        optimizer = {"learningRate": self.learning_rate, "beta2": 0.99, "epsilon": 1e-5, "maxGradNorm": 100.0}
        return Policy.model_validate(
            {
                "name": "learner",
                "model": {"uri": "model"},
                "algorithm": {"optimizer": optimizer, "schedule": schedule, **self.algorithm},
                "sampling": {"maxTokens": 1},
                "trainer": {"dtype": "float32", "gradientCheckpointing": False},
            }
        )


class QuizSampler:
    """Draws episodes from the learner's own weights, and makes rows of them as a lease would."""

    def __init__(self, model_path: Path, quiz: Quiz, setting: TurnSetting, *, seed: int) -> None:
        self._model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._quiz = quiz
        self._setting = setting
        self._rule = AdvantageRule.of(setting.policy())
        self._chance = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def rows(self, weights: Mapping[str, torch.Tensor], *, version: int) -> tuple[list[Row], float]:
        """Rows of a step, and the share of answers that were right."""
        self._model.load_state_dict(weights)
        setting = self._setting
        asked = torch.randint(0, _QUESTIONS, (setting.groups, TURNS), generator=self._chance)
        asked = asked.repeat_interleave(setting.group_size, dim=0)
        ids, logprobs = torch.zeros(len(asked), 0, dtype=torch.int64), torch.zeros(len(asked), 0)
        for turn in range(TURNS):
            ids = torch.cat([ids, asked[:, turn : turn + 1]], dim=1)
            following = torch.log_softmax(self._model(input_ids=ids, use_cache=False).logits[:, -1], dim=-1)
            drawn = torch.multinomial(following.exp(), 1, generator=self._chance)
            ids = torch.cat([ids, drawn], dim=1)
            logprobs = torch.cat([logprobs, torch.zeros(len(asked), 1), following.gather(1, drawn)], dim=1)
        right = (ids[:, 1::2] == torch.tensor(self._quiz.answers)[asked]).float()
        rows: list[Row] = []
        for first in range(0, len(asked), setting.group_size):
            part = slice(first, first + setting.group_size)
            rows += self._group(ids[part], logprobs[part], right[part], version=version, first_key=first)
        return rows, float(right.mean())

    def _group(
        self, ids: torch.Tensor, logprobs: torch.Tensor, right: torch.Tensor, *, version: int, first_key: int
    ) -> list[Row]:
        episodes = tuple(
            Episode(
                reward=float(all(earned)),
                trained_tokens=TURNS,
                turns=tuple(TurnReward(number, 1, reward) for number, reward in enumerate(earned)),
            )
            for earned in right.tolist()
        )
        group = self._rule.group(Group(group_id=f"g{first_key}", prompt_id="quiz", episodes=episodes))
        mask = np.arange(2 * TURNS) % 2 == 1
        rows = []
        for number, episode in enumerate(episodes):
            advantages = np.zeros(2 * TURNS, dtype=np.float32)
            advantages[mask] = group.of(
                RowRewards(reward=episode.reward, episode=episode, trained_tokens=TURNS, turns=episode.turns)
            )
            rows.append(
                Row(
                    key=first_key + number,
                    episode=sole_row(number, mask, group=f"g{first_key}"),
                    token_ids=ids[number].numpy().astype(np.int32),
                    logprobs=logprobs[number].numpy(),
                    mask=mask,
                    versions=np.where(mask, version, -1),
                    advantages=advantages,
                )
            )
        return rows


def learn_quiz(setting: TurnSetting, *, model_path: Path, seed: int) -> list[float]:
    """The share of right answers in each step's samples, which the step is trained on."""
    learner = Learner(setting.policy(), model_path=model_path)
    sampler = QuizSampler(model_path, Quiz.drawn(seed), setting, seed=seed)
    shares = []
    for step in range(setting.steps):
        weights = {name: tensor.detach() for name, tensor in learner.model.state_dict().items()}
        rows, share = sampler.rows(weights, version=step)
        shares.append(share)
        learner.accumulate(rows)
        learner.update(
            StepTotals(
                samples=len(rows),
                groups=setting.groups,
                episodes=len(rows),
                tokens=2 * TURNS * len(rows),
                trained_tokens=TURNS * len(rows),
            )
        )
    return shares
