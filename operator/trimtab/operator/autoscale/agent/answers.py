"""What came of a question to the agent, as far as the plan has to know."""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.operator.autoscale.agent.proposal import AgentProposal


@dataclass(frozen=True, kw_only=True)
class Answered:
    question: str
    """The decision's id."""
    proposal: AgentProposal
    transcript: str


@dataclass(frozen=True, kw_only=True)
class Unanswered:
    question: str
    cause: str
    """One CamelCase word."""
    text: str
    transcript: str | None = None


Answer = Answered | Unanswered
