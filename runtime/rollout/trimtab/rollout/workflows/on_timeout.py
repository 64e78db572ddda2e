"""What becomes of an answer whose check takes too long: a failed episode, or a score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

CHECK_TIMEOUT = "check_timeout"
"""The part of a reward that is 1 where a score stands for a check that took too long. Its mean is their share."""
_FAIL = "fail"


@dataclass(frozen=True)
class OnTimeout:
    score: float | None
    """None: the episode fails."""

    @classmethod
    def of(cls, given: object, *, name: str) -> Self:
        """From an argument of the manifest. Raises ValueError, which names what is wrong with it."""
        if given == _FAIL:
            return cls(None)
        # A bool is a number in Python, and `on_timeout: true` says nothing that anybody could mean.
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given):
            raise ValueError(f"{name} is {given!r:.80}: it is {_FAIL}, or the score of such an answer, a number")
        return cls(float(given))

    @property
    def none(self) -> Mapping[str, float]:
        """The parts of a reward whose check came to its end."""
        return {} if self.score is None else {CHECK_TIMEOUT: 0.0}
