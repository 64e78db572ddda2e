"""The problems of the example: two digits to be added or subtracted, with a digit as the answer."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

_MARKS = ("<calculator>", "</calculator>", "<answer>", "</answer>")
_TOLD = ("calculator", "answer", "gave", "result", "rejected", "neither", "nothing", "Error", "ACCEPT", "REJECT")
WORDS = (*_MARKS, *map(str, range(10)), *_TOLD, "+", "-", "?", ":", ".", "~")
"""All that is ever said; the last stands for anything else."""


@dataclass(frozen=True)
class Sum:
    text: str
    value: int


def all_sums() -> Sequence[Sum]:
    pairs = [(one, other) for one in range(10) for other in range(10)]
    return (
        *(Sum(f"{one} + {other}", one + other) for one, other in pairs if one + other <= 9),
        *(Sum(f"{one} - {other}", one - other) for one, other in pairs if one >= other),
    )


def draw_sum(chance: random.Random) -> Sum:
    return chance.choice(all_sums())
