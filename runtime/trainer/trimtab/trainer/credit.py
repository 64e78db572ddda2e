"""Credit per turn: a turn is compared by what it and later turns earned with the same turn of other episodes."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.algorithm import Credit
from trimtab.fabric.wire.trajectory import TurnReward
from trimtab.trainer.baseline import GroupBaseline


def returns(turns: Sequence[TurnReward], *, outcome: float, credit: Credit) -> list[float]:
    """What each turn of an episode led to: rewards from it on and the outcome at the end, worth less the later."""
    following = credit.outcome_weight * outcome
    found = []
    for number, turn in enumerate(reversed(turns)):
        following = turn.reward + (following if number == 0 else credit.discount * following)
        found.append(following)
    return found[::-1]


class TurnBaselines:
    """What returns of one group are compared with: those of the same turn of every episode that gets so far. One that
    no other episode gets to is compared with all returns of the group.
    """

    def __init__(self, episodes: Sequence[Sequence[float]], *, normalize: bool, leave_one_out: bool) -> None:
        """`episodes` are the returns of each, in the order of its turns."""
        self._all = GroupBaseline(
            [value for values in episodes for value in values], normalize=normalize, leave_one_out=leave_one_out
        )
        self._by_turn: list[GroupBaseline] = []
        for place in range(max(map(len, episodes), default=0)):
            reached = [values[place] for values in episodes if len(values) > place]
            if len(reached) == 1:
                break
            self._by_turn.append(GroupBaseline(reached, normalize=normalize, leave_one_out=leave_one_out))

    def advantage(self, value: float, *, place: int) -> float:
        baseline = self._by_turn[place] if place < len(self._by_turn) else self._all
        return baseline.advantage(value)
