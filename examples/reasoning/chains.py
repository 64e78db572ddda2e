"""The task: add the same number again and again, and write every sum down: `5+3=8, 8+3=11, 11+3=14.`"""

from __future__ import annotations

import itertools
import random

_FIRST = range(1, 20)
_ADDED = range(1, 7)
_SHOWN = (4, 3)
"""Worked out before every prompt: without it the model does not know what is asked for."""


def working(first: int, added: int, *, steps: int) -> list[str]:
    starts = [first + step * added for step in range(steps)]
    return [f"{start}+{added}={start + added}" for start in starts]


def chains(*, steps: int, seed: int) -> list[dict[str, str]]:
    """All of them but the one that is shown, as prompts with their answers. The order follows from the seed."""
    shown = ", ".join(working(*_SHOWN, steps=steps))
    rows = []
    for first, added in itertools.product(_FIRST, _ADDED):
        if (first, added) != _SHOWN:
            beginning, *rest = working(first, added, steps=steps)
            rows.append({"prompt": f"{shown}.\n{beginning},", "answer": f" {', '.join(rest)}."})
    random.Random(seed).shuffle(rows)  # noqa: S311 - no secret
    return rows
