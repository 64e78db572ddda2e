"""What came of a question to the agent, as far as the plan has to know."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.operator.autoscale.agent.proposal import AgentProposal


@dataclass(frozen=True, kw_only=True)
class Answered:
    question: str
    """The decision's id."""
    asked_at: float
    proposal: AgentProposal
    transcript: str


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    question: str
    asked_at: float
    cause: str
    """One CamelCase word."""
    text: str
    transcript: str | None = None


Answer = Answered | Unanswered
