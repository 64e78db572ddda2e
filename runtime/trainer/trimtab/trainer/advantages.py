"""From the rewards of a prompt's episodes to the advantages of tokens, as the policy's algorithm has it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from trimtab.api.algorithm import Credit, Overlong
from trimtab.api.policy import Policy
from trimtab.fabric.wire.lease import Episode, Group
from trimtab.trainer.baseline import GroupBaseline
from trimtab.trainer.credit import TurnBaselines, returns
from trimtab.trainer.losses.recipe import Recipe
from trimtab.trainer.losses.registry import needed_columns, recipe_of
from trimtab.trainer.row_rewards import Advantages, RowRewards


class TurnsUnknown(ValueError):
    """A row does not say what its turns earned, or not what its episode says."""


class AdvantagesUnusable(ValueError):
    """What an algorithm makes of a row is not one finite number for each of its trained tokens."""


@dataclass(frozen=True, kw_only=True)
class AdvantageRule:
    """What decides advantages within a group. It knows no other group: normalising over the step comes after."""

    longest_answer: int
    normalize: bool = True
    leave_one_out: bool = False
    overlong: Overlong | None = None
    credit: Credit = field(default_factory=Credit)
    own: Advantages | None = None
    """What the algorithm makes of a row itself, knowing what comparing with its group gives."""
    columns: tuple[str, ...] = ()
    """Stages without whose word a row is not trained on."""

    @classmethod
    def of(cls, policy: Policy, recipe: Recipe | None = None) -> AdvantageRule:
        """The recipe is that of the policy's algorithm, unless it has one of its own."""
        recipe = recipe or recipe_of(policy.algorithm)
        return cls(
            normalize=recipe.normalize_group_rewards,
            leave_one_out=recipe.leave_one_out,
            longest_answer=policy.sampling.max_tokens,
            overlong=policy.algorithm.overlong,
            credit=policy.algorithm.credit,
            own=recipe.advantages,
            columns=needed_columns(policy.algorithm, recipe),
        )

    @property
    def masks_truncated(self) -> bool:
        return self.overlong is not None and self.overlong.mask_truncated

    def group(self, group: Group) -> GroupAdvantages:
        compared = self._compared(group)
        return compared if self.own is None else OwnAdvantages(own=self.own, compared=compared)

    def _compared(self, group: Group) -> OutcomeAdvantages | TurnAdvantages:
        outcomes = [self.shaped(episode.reward, episode) for episode in group.episodes]
        if self.credit.type == "Outcome":
            return OutcomeAdvantages(
                rule=self,
                baseline=GroupBaseline(outcomes, normalize=self.normalize, leave_one_out=self.leave_one_out),
            )
        return TurnAdvantages(
            rule=self,
            baselines=TurnBaselines(
                [
                    returns(episode.turns, outcome=outcome, credit=self.credit)
                    for episode, outcome in zip(group.episodes, outcomes, strict=True)
                ],
                normalize=self.normalize,
                leave_one_out=self.leave_one_out,
            ),
        )

    def shaped(self, reward: float, episode: Episode) -> float:
        """The reward as it is compared with others."""
        if self.overlong is None:
            return reward
        return reward - overlong_penalty(
            episode.trained_tokens, longest_answer=self.longest_answer, overlong=self.overlong
        )


@dataclass(frozen=True, kw_only=True)
class OutcomeAdvantages:
    """Of the rows of one group: all tokens of a row have the same."""

    rule: AdvantageRule
    baseline: GroupBaseline

    def of(self, row: RowRewards) -> npt.NDArray[np.float32]:
        """Of each trained token of the row."""
        advantage = self.baseline.advantage(self.rule.shaped(row.reward, row.episode))
        return np.full(row.trained_tokens, advantage, dtype=np.float32)


@dataclass(frozen=True, kw_only=True)
class TurnAdvantages:
    """Of the rows of one group: all tokens of a turn have the same."""

    rule: AdvantageRule
    baselines: TurnBaselines

    def of(self, row: RowRewards) -> npt.NDArray[np.float32]:
        """Of each trained token of the row. Raises TurnsUnknown."""
        # What a turn earned is the lease's word: a stage may have replaced what the row says of it.
        places = {(turn.number, turn.tokens): place for place, turn in enumerate(row.episode.turns)}
        own = [(turn.number, turn.tokens) for turn in row.turns]
        if any(turn not in places for turn in own):
            raise TurnsUnknown("it has turns that its episode does not have")
        tokens = [turn.tokens for turn in row.turns]
        if sum(tokens) != row.trained_tokens:
            raise TurnsUnknown(
                f"its turns have {sum(tokens)} of its {row.trained_tokens} trained tokens, and algorithm.credit.type"
                " is Turn"
            )
        outcome = self.rule.shaped(row.reward, row.episode)
        values = returns(row.episode.turns, outcome=outcome, credit=self.rule.credit)
        advantages = [self.baselines.advantage(values[places[turn]], place=places[turn]) for turn in own]
        return np.repeat(np.array(advantages, dtype=np.float32), tokens)


@dataclass(frozen=True, kw_only=True)
class OwnAdvantages:
    """Of the rows of one group, as the algorithm makes them itself."""

    own: Advantages
    compared: OutcomeAdvantages | TurnAdvantages

    def of(self, row: RowRewards) -> npt.NDArray[np.float32]:
        """Of each trained token of the row. Raises TurnsUnknown and AdvantagesUnusable."""
        shaped = replace(row, reward=self.compared.rule.shaped(row.reward, row.episode))
        made = np.asarray(self.own(shaped, self.compared.of(row)), dtype=np.float32)
        if made.shape != (row.trained_tokens,):
            raise AdvantagesUnusable(
                f"the algorithm's advantages have the shape {list(made.shape)}, for {row.trained_tokens} trained tokens"
            )
        if not np.isfinite(made).all():
            raise AdvantagesUnusable("an advantage is not finite")
        return made


GroupAdvantages = OutcomeAdvantages | TurnAdvantages | OwnAdvantages


def overlong_penalty(tokens: int, *, longest_answer: int, overlong: Overlong) -> float:
    """What is taken off the reward: nothing below the buffer zone, all of the penalty at the limit, linear between."""
    if overlong.buffer_tokens == 0:
        return 0.0
    beyond = tokens - (longest_answer - overlong.buffer_tokens)
    return overlong.penalty * min(1.0, max(0.0, beyond / overlong.buffer_tokens))
