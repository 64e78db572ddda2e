"""GRESO: a prompt whose group was all correct or all wrong is likely to give such a group again, so it is rolled out
less often.

Zheng et al., "Act Only When It Pays" (arXiv 2506.02177), with the constants of the authors' repository. Where the paper
has one policy, rewards of 0 and 1 and known epochs, this has rules of its own:

- Several policies. Each role of each policy judges for itself, with streaks and probabilities of its own. A prompt is
  rolled out if any of them wants it, on the same draw. A policy that no longer steps loses its say.
- Rewards of any scale. A zero-variance group is easy if its reward is nearer to the highest that this role has seen
  than to the lowest, else hard. Until two different rewards have been seen, a positive one is easy.
- Epochs. The authors adjust from the second epoch on: before, nothing was skipped, and the shares say nothing about p.
  Here p rests until the first prompt with a streak has come back, which is the same moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from trimtab.api.data import Greso as GresoSettings
from trimtab.dataflow.outcomes import GroupOutcome

_LOWEST_PROBABILITY = 0.05
_HIGHEST_PROBABILITY = 0.95
# Groups after which an observation counts 1/e in the running share.
_MEMORY_GROUPS = 256
# Of fewer groups than this, those not yet seen count as useful: the first few must not call for six times the work.
_ENOUGH_GROUPS = 64
# The authors ask for 64 to 384 prompts at once. Without a limit a share close to 1 would ask for everything there is.
_MOST_PER_MISSING = 6
# Admission keeps policies within maxStaleness + 1 steps of each other, so one this far behind the rest has finished.
_SILENT_AFTER_STEPS = 64


class _Stream(msgspec.Struct, kw_only=True):
    """What the groups of one role of one policy have taught."""

    p_easy: float
    p_hard: float
    lowest_reward: float
    highest_reward: float
    streaks: dict[str, int] = {}
    """By prompt, zero-variance groups in a row: positive for easy ones, negative for hard ones, never 0."""
    skips: bool = False
    """A prompt with a streak has come back, so the shares below are those of a curated stream."""
    groups: int = 0
    """Since the latest adjustment, as the two below."""
    easy: int = 0
    hard: int = 0
    recent_groups: float = 0.0
    """Weights of past groups, the latest with 1; below, those of zero variance."""
    recent_silent: float = 0.0

    @property
    def zero_variance_share(self) -> float:
        return self.recent_silent / max(self.recent_groups, _ENOUGH_GROUPS)

    def probability(self, prompt_id: str, settings: GresoSettings) -> float:
        streak = self.streaks.get(prompt_id, 0)
        if streak > 0:
            return max(float(self.p_easy**streak), settings.floor_easy)
        return max(float(self.p_hard**-streak), settings.floor_hard)

    def observe(self, outcome: GroupOutcome) -> None:
        self.lowest_reward = min(self.lowest_reward, *outcome.rewards)
        self.highest_reward = max(self.highest_reward, *outcome.rewards)
        streak = self.streaks.get(outcome.prompt_id, 0)
        self.skips = self.skips or streak != 0
        self.groups += 1
        fading = 1.0 - 1.0 / _MEMORY_GROUPS
        self.recent_groups = self.recent_groups * fading + 1.0
        self.recent_silent = self.recent_silent * fading + outcome.is_zero_variance
        if not outcome.is_zero_variance:
            self.streaks.pop(outcome.prompt_id, None)
        elif self._is_easy(outcome.rewards[0]):
            self.easy += 1
            self.streaks[outcome.prompt_id] = max(streak, 0) + 1
        else:
            self.hard += 1
            self.streaks[outcome.prompt_id] = min(streak, 0) - 1

    def adjust(self, settings: GresoSettings) -> None:
        if self.skips and self.groups:
            easy_move = -settings.step if self.easy / self.groups >= settings.target_easy else settings.step
            hard_move = -settings.step if self.hard / self.groups >= settings.target_hard else settings.step
            self.p_easy = _clamped(self.p_easy + easy_move)
            self.p_hard = _clamped(self.p_hard + hard_move)
        self.groups = self.easy = self.hard = 0

    def _is_easy(self, reward: float) -> bool:
        if self.lowest_reward == self.highest_reward:
            return reward > 0
        return reward - self.lowest_reward > self.highest_reward - reward


class _Policy(msgspec.Struct, kw_only=True):
    stepped_at: int
    """Steps of all policies at the time of its latest."""
    roles: dict[str, _Stream] = {}


class _State(msgspec.Struct, kw_only=True):
    steps: int = 0
    policies: dict[str, _Policy] = {}


class Greso:
    """A prompt with z zero-variance groups of one kind in a row is rolled out with probability p^z of that kind, at
    least its floor. After each step p moves so that the shares of easy and hard groups approach their targets.

    Its state has an entry for every prompt with a streak, and for no other.
    """

    def __init__(self, settings: GresoSettings) -> None:
        self._settings = settings
        self._state = _State()

    def admits(self, prompt_id: str, content: Mapping[str, Any], *, draw: float) -> bool:
        return draw < max((stream.probability(prompt_id, self._settings) for stream in self._streams()), default=1.0)

    def observe(self, outcome: GroupOutcome) -> None:
        roles = self._policy(outcome.policy).roles
        if outcome.role not in roles:
            p = _clamped(self._settings.initial_probability)
            reward = outcome.rewards[0]
            roles[outcome.role] = _Stream(p_easy=p, p_hard=p, lowest_reward=reward, highest_reward=reward)
        roles[outcome.role].observe(outcome)

    def stepped(self, policy: str, step: int) -> None:
        self._state.steps += 1
        learner = self._policy(policy)
        learner.stepped_at = self._state.steps
        for stream in learner.roles.values():
            stream.adjust(self._settings)

    def groups_needed(self, missing: int) -> int:
        """How many groups to roll out so that `missing` of them will have variance, by the share of late.

        Of several roles the one with the fewest such groups decides. Never more than six times `missing`: when
        nearly all groups are silent, the rest is asked for once these have come back.
        """
        share = max((stream.zero_variance_share for stream in self._streams()), default=0.0)
        most = missing * _MOST_PER_MISSING
        # Compared before dividing: a share of 1 leaves nothing to divide by. Rounding errors ask for no group.
        if missing * self._settings.margin >= most * (1.0 - share):
            return most
        return math.ceil(missing / (1.0 - share) * self._settings.margin - 1e-9)

    def state(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.to_builtins(self._state)
        return plain

    def restore(self, state: Mapping[str, Any]) -> None:
        self._state = msgspec.convert(state, _State)

    def _policy(self, name: str) -> _Policy:
        return self._state.policies.setdefault(name, _Policy(stepped_at=self._state.steps))

    def _streams(self) -> Iterator[_Stream]:
        """Those with a say."""
        policies = self._state.policies.values()
        silent_after = _SILENT_AFTER_STEPS * (len(policies) - 1)
        for policy in policies:
            if self._state.steps - policy.stepped_at <= silent_after:
                yield from policy.roles.values()


def _clamped(probability: float) -> float:
    return min(max(probability, _LOWEST_PROBABILITY), _HIGHEST_PROBABILITY)
