"""From the rewards of a prompt's samples to their advantages, as the policy's algorithm has it."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.api.algorithm import Overlong
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Group
from trimtab.trainer.advantages.group import GroupBaseline
from trimtab.trainer.advantages.overlong import overlong_penalty
from trimtab.trainer.losses.registry import recipe_of


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
        rewards = [
            self.shaped(reward, tokens)
            for reward, tokens in zip(group.rewards, group.trained_tokens or (0,) * len(group.rewards), strict=True)
        ]
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
