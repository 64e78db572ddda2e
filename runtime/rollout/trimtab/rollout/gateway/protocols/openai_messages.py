"""Chat messages and tools as OpenAI writes them, read into what was said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trimtab.rollout.gateway.exchange import Said, Tool, ToolCall
from trimtab.rollout.gateway.protocols.request_body import Body, CalledName, CallId, Name, Schema


def _as_parts(given: Any) -> Any:
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    return [] if given is None else given


class TextPart(Body):
    """Text is all that the policies read: images, audio and files are refused by their type."""

    type: Literal["text"]
    text: str


class RefusalPart(Body):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Parts = Annotated[list[TextPart], BeforeValidator(_as_parts)]
"""A text, or a list of them."""
OwnParts = Annotated[
    list[Annotated[TextPart | RefusalPart, Field(discriminator="type")]],
    BeforeValidator(_as_parts),
]


class Function(Body):
    name: CalledName
    arguments: str


class Call(Body):
    id: CallId
    type: Literal["function"] = "function"
    function: Function
    index: int | None = None
    """Some agents send back what they gathered from a stream."""


class SystemMessage(Body):
    role: Literal["system", "developer"]
    content: Parts
    name: str | None = None

    def said(self) -> Said:
        return Said(speaker="system", text=lines(self.content))


class UserMessage(Body):
    role: Literal["user"]
    content: Parts
    name: str | None = None

    def said(self) -> Said:
        return Said(speaker="user", text=lines(self.content))


class AssistantMessage(Body):
    """Also as an answer looks when an agent sends back all of it."""

    role: Literal["assistant"]
    content: OwnParts = Field(default_factory=list)
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    annotations: list[Any] | None = None
    parsed: Any = None

    def said(self) -> Said:
        calls = tuple(
            ToolCall(call_id=call.id, name=call.function.name, arguments=call.function.arguments)
            for call in self.tool_calls or ()
        )
        text = "".join(part.text for part in self.content) or self.refusal or ""
        return Said(
            speaker="assistant", text=text, reasoning=self.reasoning_content or self.reasoning or "", calls=calls
        )


class ToolMessage(Body):
    role: Literal["tool"]
    content: Parts
    tool_call_id: CallId
    name: str | None = None

    def said(self) -> Said:
        return Said(speaker="tool", text=lines(self.content), answers=self.tool_call_id)


Message = Annotated[SystemMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class FunctionSchema(Body):
    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None


class ChatTool(Body):
    type: Literal["function"]
    function: FunctionSchema

    def tool(self) -> Tool:
        return Tool(
            name=self.function.name,
            description=self.function.description or "",
            parameters=self.function.parameters or {"type": "object", "properties": {}},
        )


class NamedFunction(Body):
    name: Name


class NamedTool(Body):
    type: Literal["function"]
    function: NamedFunction


def lines(parts: Sequence[TextPart]) -> str:
    """Parts of others' messages are paragraphs; those of the model's own are pieces of one text."""
    return "\n".join(part.text for part in parts)
