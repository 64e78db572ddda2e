"""A critic that learns beside a policy, from the same samples, and values them with weights of so many versions ago."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from tests.support.learning.known_optimum import KnownTask
from tests.support.learning.learning_run import Reshape, Run, Setting, Stage, learn, word_setting
from trimtab.fabric.wire.lease import StepTotals
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner
from trimtab.trainer.metrics import StepMeasures

STAGE = "values"


class CriticBeside:
    """`values` is the stage that asks it, `train` what its trainer does with the rows of a step."""

    def __init__(self, setting: Setting, task: KnownTask, *, model_path: Path) -> None:
        self._learner = Learner(setting.policy(task), model_path=model_path)
        config = LlamaConfig.from_pretrained(model_path)
        config.num_labels = 1
        self._engine = LlamaForSequenceClassification(config).eval()
        self._versions = deque([self._weights()], maxlen=setting.staleness + 1)
        self.measures: list[StepMeasures] = []

    @torch.no_grad()
    def values(self, ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        self._engine.load_state_dict(self._versions[0])
        states = self._engine.model(input_ids=torch.from_numpy(ids.astype(np.int64))).last_hidden_state
        before = self._engine.score(states)[:, :-1, 0]
        return np.concatenate((np.zeros((len(ids), 1)), before.numpy()), axis=1).astype(np.float32)

    def train(self, rows: list[Row]) -> list[Row]:
        asked = self._learner.step + 1 - len(self._versions)
        self._learner.accumulate([replace(row, column_versions={STAGE: asked}) for row in rows])
        totals = StepTotals(samples=len(rows), groups=1, episodes=len(rows), tokens=1, trained_tokens=1)
        self.measures.append(self._learner.update(totals).measures)
        self._versions.append(self._weights())
        return rows

    def _weights(self) -> dict[str, torch.Tensor]:
        return {name: tensor.detach().clone() for name, tensor in self._learner.model.state_dict().items()}


def learn_with_critic(
    task: KnownTask,
    *,
    model_path: Path,
    seed: int,
    steps: int = 150,
    staleness: int = 0,
    reshape: Reshape = lambda rows: rows,
) -> tuple[Run, CriticBeside]:
    """PPO on the words, in groups of one: there is nothing to compare a sample with but what the critic expects.
    Samples and values are both so many versions old. `reshape` is of what the policy gets, not the critic.
    """
    expected = {"critic": {"stage": STAGE, "lambda": 0.95}}
    actor = replace(word_setting("ppo", staleness=staleness), steps=steps, group_size=1, groups=32)
    actor = replace(actor, algorithm={**actor.algorithm, **expected})
    valuing = {"name": "critic", **expected, "clip": {"low": 0.5, "high": 0.5}}
    critic = CriticBeside(replace(actor, algorithm=valuing, learning_rate=5e-3), task, model_path=model_path)
    run = learn(
        actor,
        task,
        model_path=model_path,
        seed=seed,
        reshape=lambda rows: reshape(critic.train(rows)),
        stages={STAGE: critic.values},
    )
    return run, critic


def teacher(folder: Path) -> Stage:
    """The stage that computes the log-probabilities of a model that stays as it is."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.no_grad()
    def logprobs(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
        tokens = torch.from_numpy(ids.astype(np.int64))
        following = torch.log_softmax(model(input_ids=tokens).logits[:, :-1].float(), dim=-1)
        chosen = following.gather(2, tokens[:, 1:, None])[..., 0]
        return np.concatenate((np.zeros((len(ids), 1)), chosen.numpy()), axis=1).astype(np.float32)

    return logprobs
