"""A run of the real learner on chains that a tiny model works out, with the trainer and the engine in types of weights
of their own: what the two of them differ by can be told from what they learn.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import LlamaForCausalLM

from tests.support.learning.digit_chains import Chain, chain
from tests.support.learning.small_reasoner import ASKED, CHARACTERS, END, STEPS
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group, StepTotals
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import Row, sole_row
from trimtab.trainer.learner import Learner
from trimtab.trainer.metrics import StepMeasures
from trimtab.trainer.row_rewards import RowRewards

_LONGEST = 6 * STEPS + 4
_END = CHARACTERS.index(END)
_HELD_OUT = 96
_HELD_OUT_SEED = 10_000

Tokens = npt.NDArray[np.int64]
Weights = Mapping[str, torch.Tensor]


@dataclass(frozen=True, kw_only=True)
class ReasoningSetting:
    """`algorithm` is as in a manifest; the trainer's type may be one that manifests do not have."""

    algorithm: Mapping[str, Any]
    trainer: str = "bfloat16"
    engine: str = "bfloat16"
    steps: int = 40
    learning_rate: float = 1e-4
    staleness: int = 2
    groups: int = 8
    group_size: int = 8

    def policy(self) -> Policy:
        """On a CPU a trainer scores the weights in the type that it publishes."""
        policy = Policy.model_validate(
            {
                "name": "solver",
                "model": {"uri": "model"},
                "algorithm": {"optimizer": {"learningRate": self.learning_rate}, **self.algorithm},
                "sampling": {"maxTokens": _LONGEST},
                "trainer": {"gradientCheckpointing": False},
            }
        )
        return policy.model_copy(update={"trainer": policy.trainer.model_copy(update={"dtype": self.trainer})})


@dataclass(frozen=True, kw_only=True)
class ReasoningRun:
    before: float
    after: float
    """Share of held-out chains that are worked out without a mistake."""
    reward: float
    drift: float
    left_out: float
    """Means over the second half of the steps."""


def reason(setting: ReasoningSetting, *, model_path: Path, seed: int) -> ReasoningRun:
    """Step `n` trains on samples of version `n - staleness`, the first ones on samples of the start."""
    policy = setting.policy()
    learner = Learner(policy, model_path=model_path)
    engine = _Engine(model_path, seed=seed)
    chance = random.Random(seed)
    held_out = [chain(steps=STEPS, chance=random.Random(_HELD_OUT_SEED + number)) for number in range(_HELD_OUT)]
    versions = deque([_rounded(learner, setting.engine)], maxlen=setting.staleness + 1)
    before = engine.answers(versions[-1], held_out).faultless
    rewards: list[float] = []
    measures: list[StepMeasures] = []
    for step in range(setting.steps):
        asked = [chain(steps=STEPS, chance=chance) for _ in range(setting.groups)]
        drawn = engine.answers(versions[0], [one for one in asked for _ in range(setting.group_size)])
        rows = _rows(drawn, AdvantageRule.of(policy), setting=setting, version=step + 1 - len(versions))
        learner.accumulate(rows)
        totals = StepTotals(
            samples=len(rows), groups=setting.groups, episodes=len(rows), tokens=len(rows), trained_tokens=len(rows)
        )
        measures.append(learner.update(totals).measures)
        rewards.append(fmean(drawn.rewards))
        versions.append(_rounded(learner, setting.engine))
    late = slice(setting.steps // 2, None)
    return ReasoningRun(
        before=before,
        after=engine.answers(versions[-1], held_out).faultless,
        reward=fmean(rewards[late]),
        drift=fmean(measure.sampling_drift for measure in measures[late]),
        left_out=fmean(measure.left_out_fraction for measure in measures[late]),
    )


@dataclass(frozen=True, kw_only=True)
class _Answers:
    prompts: Tokens
    said: Sequence[Tokens]
    logprobs: Sequence[npt.NDArray[np.float32]]
    rewards: Sequence[float]

    @property
    def faultless(self) -> float:
        return fmean(reward == 1.0 for reward in self.rewards)


class _Engine:
    """Draws answers with the logprob of every token, as an engine would."""

    def __init__(self, model_path: Path, *, seed: int) -> None:
        self._model = LlamaForCausalLM.from_pretrained(model_path, dtype=torch.float32)
        self._chance = torch.Generator().manual_seed(seed)

    @torch.no_grad()
    def answers(self, weights: Weights, asked: Sequence[Chain]) -> _Answers:
        self._model.load_state_dict(weights)
        prompts = torch.tensor([[CHARACTERS.index(letter) for letter in one.problem + ASKED] for one in asked])
        tokens, drawn, logprobs, past = prompts, [], [], None
        for _ in range(_LONGEST):
            output = self._model(input_ids=tokens, past_key_values=past, use_cache=True)
            past = output.past_key_values
            following = torch.log_softmax(output.logits[:, -1].float(), dim=-1)
            tokens = torch.multinomial(following.exp(), 1, generator=self._chance)
            drawn.append(tokens)
            logprobs.append(following.gather(1, tokens))
        said, said_logprobs = torch.cat(drawn, dim=1).numpy(), torch.cat(logprobs, dim=1).numpy()
        lengths = [_length(row) for row in said]
        kept = [row[:length] for row, length in zip(said, lengths, strict=True)]
        return _Answers(
            prompts=prompts.numpy(),
            said=kept,
            logprobs=[row[:length] for row, length in zip(said_logprobs, lengths, strict=True)],
            rewards=[_lines_right(one, row) for one, row in zip(asked, kept, strict=True)],
        )


def _length(said: Tokens) -> int:
    ends = np.flatnonzero(said == _END)
    return int(ends[0]) + 1 if len(ends) else len(said)


def _lines_right(asked: Chain, said: Tokens) -> float:
    """Of the lines that there should be, or of those that there are if they are more."""
    lines = "".join(CHARACTERS[token] for token in said if token != _END).split("\n")
    known = asked.working.split("\n")
    right = sum(given == expected for given, expected in zip(lines, known, strict=False))
    return right / max(len(lines), len(known))


def _rows(drawn: _Answers, rule: AdvantageRule, *, setting: ReasoningSetting, version: int) -> list[Row]:
    rows: list[Row] = []
    episodes = [
        Episode(reward=reward, trained_tokens=len(said)) for reward, said in zip(drawn.rewards, drawn.said, strict=True)
    ]
    for start in range(0, len(episodes), setting.group_size):
        members = range(start, start + setting.group_size)
        group = rule.group(
            Group(group_id=f"g{start}", prompt_id=f"p{start}", episodes=tuple(episodes[at] for at in members))
        )
        for at in members:
            prompt, said, episode = drawn.prompts[at], drawn.said[at], episodes[at]
            mask = np.arange(len(prompt) + len(said)) >= len(prompt)
            advantages = np.zeros(len(mask), dtype=np.float32)
            advantages[mask] = group.of(
                RowRewards(reward=episode.reward, episode=episode, trained_tokens=episode.trained_tokens)
            )
            rows.append(
                Row(
                    key=at,
                    episode=sole_row(at, mask),
                    token_ids=np.concatenate([prompt, said]).astype(np.int32),
                    logprobs=np.concatenate([np.zeros(len(prompt), dtype=np.float32), drawn.logprobs[at]]),
                    mask=mask,
                    versions=np.where(mask, version, -1),
                    advantages=advantages,
                )
            )
    return rows


def _rounded(learner: Learner, dtype: str) -> dict[str, torch.Tensor]:
    return {
        name: tensor.detach().to(getattr(torch, dtype), copy=True).float()
        for name, tensor in learner.model.state_dict().items()
    }
