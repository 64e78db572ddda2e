"""What an answer is worth, as checks say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from trimtab.rollout.workflows.team import Team


@dataclass(frozen=True)
class Score:
    """1 is right, 0 is wrong, between them partly right."""

    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Of the reward: what is worth counting besides."""


class Check(Protocol):
    async def score(self, answer: str | None, expected: Any, team: Team, /) -> Score:
        """Of an answer against a column of the prompt; None is an answer that was not found in what was said."""
