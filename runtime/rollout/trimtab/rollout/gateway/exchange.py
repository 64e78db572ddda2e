"""What is asked and answered, whatever protocol the agent speaks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

Speaker = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True)
class ToolCall:
    call_id: str
    name: str
    arguments: str
    """JSON text, as the model wrote it where it wrote it."""


@dataclass(frozen=True, kw_only=True)
class Said:
    speaker: Speaker
    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    answers: str | None = None
    """The id of the call that a tool's message answers."""


@dataclass(frozen=True, kw_only=True)
class Tool:
    name: str
    description: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ask:
    role: str
    messages: tuple[Said, ...] | str
    """A text: completions, without a chat template."""
    tools: tuple[Tool, ...] = ()
    count: int = 1
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    wishes: Mapping[str, Any] = field(default_factory=dict)
    """Temperature, top_p, seed, ...: the agent's, overridden for policies that learn."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    said: Said
    finish: Literal["stop", "length", "tool_calls"]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    version: int | None


@dataclass(frozen=True, kw_only=True)
class Piece:
    index: int
    text: str = ""
    reasoning: str = ""
    call: ToolCall | None = None
    """A whole call, or (first name, then) parts of its arguments."""


class GatewayError(Exception):
    """Each has a message; protocols give it their own shape and status."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class UnknownRole(GatewayError):
    """Names the roles that there are."""


class Refused(GatewayError):
    """Names the field."""


class BudgetSpent(GatewayError):
    """Tokens, turns or wall time of the episode: asking again does not help."""


class Unavailable(GatewayError):
    """The episode is over or the worker drains."""


class Session(Protocol):
    async def ask(self, ask: Ask) -> tuple[Answer, ...]: ...

    def stream(self, ask: Ask) -> AsyncIterator[Piece | Answer]:
        """Pieces, then one Answer per index."""
