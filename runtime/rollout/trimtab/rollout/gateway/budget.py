"""What an episode may spend through the gateway. Tokens that are being sampled count as if all were: answers that are
asked for side by side do not go beyond it together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields

from trimtab.rollout.gateway.exchange import BudgetSpent


@dataclass(frozen=True, kw_only=True)
class BudgetLimits:
    """Of one episode, all roles together; None is no limit."""

    tokens: int | None = None
    """That are sampled."""
    turns: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "turns", "seconds"):
            limit = getattr(self, name)
            if limit is not None and limit <= 0:
                raise ValueError(f"budget.{name} is {limit}; give a number above 0, or none at all")


def budget_of(given: Mapping[str, float]) -> BudgetLimits:
    """As a manifest says it."""
    known = [each.name for each in fields(BudgetLimits)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"budget.{unknown[0]} is not known: there are {', '.join(known)}")
    return BudgetLimits(**given)  # type: ignore[arg-type]


class Budget:
    def __init__(self, limits: BudgetLimits, *, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._began = clock()
        self._reserved = 0
        self.tokens = 0
        self.turns = 0

    def time_left(self) -> float | None:
        """None without a limit. Raises BudgetSpent where there is none left."""
        if self._limits.seconds is None:
            return None
        left = self._began + self._limits.seconds - self._clock()
        if left <= 0:
            raise self.out_of_time()
        return left

    def out_of_time(self) -> BudgetSpent:
        return BudgetSpent(f"the episode's {self._limits.seconds:g} seconds are over: budget.seconds")

    def reserve(self, *, turns: int, tokens_each: int) -> int:
        """How many tokens each of so many turns may have, at most those asked for. Raises BudgetSpent."""
        self.time_left()
        if self._limits.turns is not None and self.turns + turns > self._limits.turns:
            raise BudgetSpent(f"{self.turns} of the episode's {self._limits.turns} turns are taken: budget.turns")
        if self._limits.tokens is not None:
            tokens_each = min(tokens_each, (self._limits.tokens - self.tokens - self._reserved) // turns)
            if tokens_each < 1:
                raise BudgetSpent(
                    f"{self.tokens} of the episode's {self._limits.tokens} tokens are sampled, and {self._reserved} "
                    "asked for: budget.tokens"
                )
        self.turns += turns
        self._reserved += turns * tokens_each
        return tokens_each

    def settle(self, *, reserved: int, sampled: int | None) -> None:
        """One turn is over; None where it came to nothing, and is given back."""
        self._reserved -= reserved
        if sampled is None:
            self.turns -= 1
        else:
            self.tokens += sampled
