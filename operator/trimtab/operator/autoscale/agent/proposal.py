"""What an agent wants, with its types guaranteed: known pools, known instances, whole numbers, a printable reason.
Whether it may have it is for the guard rails to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

MAX_REASON = 2048


@dataclass(frozen=True, kw_only=True)
class AgentProposal:
    targets: Mapping[str, int]
    """Replicas of every pool of the case; what the agent did not mention stays as it is."""
    victims: tuple[str, ...]
    """Instances that should go first, by id."""
    reason: str

    @property
    def replicas(self) -> int:
        return sum(self.targets.values())


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A proposal, what it cost, and where to look up how it came about."""

    proposal: AgentProposal
    tokens: int
    transcript: str
