"""An environment to learn with: find a number, told whether it is higher or lower."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trimtab.rollout.workflows.errors import PromptUnusable

_NUMBER = re.compile(r"-?[0-9]{1,18}")


class NumberGuessing:
    """The prompt's `number` lies between `low` and `high`. Finding it gives 1, and nothing else gives anything."""

    def __init__(self, *, low: int = 0, high: int = 9) -> None:
        self._low = low
        self._high = high
        self._number = low

    def reset(self, prompt: Mapping[str, Any], /) -> str:
        number = prompt.get("number")
        if not isinstance(number, int) or not self._low <= number <= self._high:
            raise PromptUnusable(f"column 'number' is {number!r}: an integer from {self._low} to {self._high}")
        self._number = number
        return f"Guess a number from {self._low} to {self._high}: "

    def step(self, action: str, /) -> tuple[str, float, bool]:
        found = _NUMBER.search(action)
        if found is None:
            return "\nThat is no number. Guess: ", 0.0, False
        guess = int(found.group())
        if guess == self._number:
            return "\nFound.", 1.0, True
        return ("\nHigher: " if guess < self._number else "\nLower: "), 0.0, False
