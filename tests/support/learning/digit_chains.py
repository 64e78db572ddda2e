"""Chains of sums and differences, computed one step at a time. Every number is a single digit, so a working
has the same length for every chain of so many steps, and each of its characters is right or wrong.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_HIGHEST = 9


@dataclass(frozen=True, kw_only=True)
class Chain:
    """`3+4-2` is worked out as `3+4=7`, then `7-2=5`."""

    problem: str
    working: str
    """A line for each step."""

    @property
    def row(self) -> dict[str, str]:
        return {"prompt": self.problem, "answer": self.working}


def chain(*, steps: int, chance: random.Random) -> Chain:
    value = chance.randint(0, _HIGHEST)
    problem, lines = str(value), []
    for _ in range(steps):
        change = _change(value, chance)
        problem += f"{change:+d}"
        lines.append(f"{value}{change:+d}={value + change}")
        value += change
    return Chain(problem=problem, working="\n".join(lines))


def chains(count: int, *, steps: int, seed: int) -> list[Chain]:
    """So many different ones, in an order that follows from the seed."""
    chance = random.Random(seed)
    found: dict[str, Chain] = {}
    while len(found) < count:
        made = chain(steps=steps, chance=chance)
        found.setdefault(made.problem, made)
    return list(found.values())


def _change(value: int, chance: random.Random) -> int:
    """Of one digit and not nothing, to another digit."""
    after = chance.choice([digit for digit in range(_HIGHEST + 1) if digit != value])
    return after - value
