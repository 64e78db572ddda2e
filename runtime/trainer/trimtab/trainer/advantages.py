"""From the rewards of a prompt's samples to their advantages, as the policy's algorithm has it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api.algorithm import Overlong
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Group
from trimtab.trainer.losses.registry import recipe_of

_DEVIATION_EPSILON = 1e-6


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """What decides advantages within a group. It knows no other group: normalising over the step comes after."""

    longest_answer: int
    normalize: bool = True
    leave_one_out: bool = False
    overlong: Overlong | None = None

    @classmethod
    def of(cls, policy: Policy) -> AdvantageRule:
        recipe = recipe_of(policy.algorithm)
        return cls(
            normalize=recipe.normalize_group_rewards,
            leave_one_out=recipe.leave_one_out,
            longest_answer=policy.sampling.max_tokens,
            overlong=policy.algorithm.overlong,
        )

    @property
    def masks_truncated(self) -> bool:
        return self.overlong is not None and self.overlong.mask_truncated

    def group(self, group: Group) -> GroupAdvantages:
        rewards = [self.shaped(episode.reward, episode.trained_tokens) for episode in group.episodes]
        return GroupAdvantages(
            rule=self,
            baseline=GroupBaseline(rewards, normalize=self.normalize, leave_one_out=self.leave_one_out),
        )

    def shaped(self, reward: float, tokens: int) -> float:
        """The reward as it is compared with others."""
        if self.overlong is None:
            return reward
        return reward - overlong_penalty(tokens, longest_answer=self.longest_answer, overlong=self.overlong)


@dataclass(frozen=True, kw_only=True)
class GroupAdvantages:
    """Advantages of the samples of one group."""

    rule: AdvantageRule
    baseline: GroupBaseline

    def of(self, reward: float, *, tokens: int) -> float:
        return self.baseline.advantage(self.rule.shaped(reward, tokens))


class GroupBaseline:
    """What the rewards of one prompt are compared with: a reward less the mean of the group, or of the others in it,
    divided by the group's (unbiased) deviation when asked to. A group of one has nothing to compare with: its advantage
    is its reward.
    """

    def __init__(self, rewards: Sequence[float], *, normalize: bool, leave_one_out: bool = False) -> None:
        self._mean, self._scale = 0.0, 1.0
        if len(rewards) == 1:
            return
        self._mean = math.fsum(rewards) / len(rewards)
        if normalize:
            variance = math.fsum((reward - self._mean) ** 2 for reward in rewards) / (len(rewards) - 1)
            self._scale = math.sqrt(variance) + _DEVIATION_EPSILON
        if leave_one_out:
            # A reward less the mean of the others is n/(n-1) times what it is above the mean of all.
            self._scale *= (len(rewards) - 1) / len(rewards)

    def advantage(self, reward: float) -> float:
        return (reward - self._mean) / self._scale


def overlong_penalty(tokens: int, *, longest_answer: int, overlong: Overlong) -> float:
    """What is taken off the reward: nothing below the buffer zone, all of the penalty at the limit, linear between."""
    if overlong.buffer_tokens == 0:
        return 0.0
    beyond = tokens - (longest_answer - overlong.buffer_tokens)
    return overlong.penalty * min(1.0, max(0.0, beyond / overlong.buffer_tokens))
