"""What comes of a question to the agent: a proposal with its types guaranteed, or the cause of there being none.

Known pools, known instances, whole numbers, a printable reason. Whether a proposal may be carried out is for the guard
rails to say. Whatever went wrong, callers see one exception, and the policy decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

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
class TranscribedProposal:
    """A proposal, what it cost, and where to look up how it came about."""

    proposal: AgentProposal
    tokens: int
    transcript: str


@dataclass(frozen=True, kw_only=True)
class Proposed:
    question: str
    """The decision's id."""
    asked_at: float
    proposal: AgentProposal
    transcript: str


@dataclass(frozen=True, kw_only=True)
class NotProposed:
    question: str
    asked_at: float
    cause: str
    """One CamelCase word."""
    text: str
    transcript: str | None = None


AgentReply = Proposed | NotProposed
"""What came of one question, as far as a plan has to know."""


class Cause(StrEnum):
    """One CamelCase word each, fit for an event's reason."""

    BAD_SETTINGS = "AgentBadSettings"
    """The key or the endpoint cannot be used as given."""
    REFUSED = "AgentRefused"
    """The model declined to answer."""
    NO_PROPOSAL = "AgentNoProposal"
    """The model stopped without calling propose."""
    MALFORMED_ANSWER = "AgentMalformedAnswer"
    """What came back is not an answer of the Messages API."""
    MALFORMED_INPUT = "AgentMalformedInput"
    """A tool was called with input it does not take, and no better call followed."""
    UNKNOWN_TOOL = "AgentUnknownTool"
    """A tool was called that does not exist, and no better call followed."""
    UNKNOWN_NAME = "AgentUnknownName"
    """A policy, pool or instance was named that does not exist, and no better call followed."""
    SEVERAL_PROPOSALS = "AgentSeveralProposals"
    """Several proposals in one answer, and no single one followed."""
    TOO_MANY_ROUNDS = "AgentTooManyRounds"
    """The model kept looking around."""
    CUT_OFF = "AgentCutOff"
    """The answer hit its limit of tokens, or the model's context is full."""
    BUDGET = "AgentBudgetSpent"
    """The tokens of the decision are spent."""
    DEADLINE = "AgentDeadline"
    """The time of the decision is over."""
    RATE_LIMITED = "AgentRateLimited"
    """HTTP 429, also after the retries."""
    REQUEST_REFUSED = "AgentRequestRefused"
    """Another HTTP 4xx, or a redirect, which is not followed: the key would travel along."""
    SERVER_ERROR = "AgentServerError"
    """HTTP 5xx, also after the retries."""
    CONNECTION = "AgentConnection"
    """No connection, or one that broke, also after the retries."""
    TRANSCRIPT = "AgentTranscript"
    """The transcript could not be kept, and a proposal that cannot be looked up later is not carried out."""


class MaintainerFailed(Exception):
    """No proposal. The text is short, without secrets, and safe for status and events."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause = cause
        self.transcript: str | None = None
        """Name of the transcript, where one was kept."""
        self.tokens = 0
        """Tokens spent before it failed."""
