"""Items of OpenAI's responses, read into what was said: a turn of the model is several items in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from trimtab.rollout.gateway.exchange import Said, Speaker, Tool, ToolCall
from trimtab.rollout.gateway.protocols.request_body import Body, CalledName, CallId, Name, Schema


def _as_parts(given: Any) -> Any:
    return [{"type": "input_text", "text": given}] if isinstance(given, str) else given


class Text(Body):
    """Also as an answer has it, when an agent sends it back. Images, audio and files are refused by their type."""

    type: Literal["input_text", "output_text", "text"]
    text: str
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None
    parsed: Any = None


class Refusal(Body):
    type: Literal["refusal"]
    refusal: str

    @property
    def text(self) -> str:
        return self.refusal


Parts = Annotated[
    list[Annotated[Text | Refusal, Field(discriminator="type")]],
    BeforeValidator(_as_parts),
]


class MessageItem(Body):
    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Parts
    id: str | None = None
    status: str | None = None
    phase: str | None = None


class CallItem(Body):
    type: Literal["function_call"]
    call_id: CallId
    name: CalledName
    arguments: str
    id: str | None = None
    status: str | None = None
    parsed_arguments: Any = None


class OutputItem(Body):
    type: Literal["function_call_output"]
    call_id: CallId
    output: Parts
    id: str | None = None
    status: str | None = None


class Thought(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    summary: list[Thought] = Field(default_factory=list)
    content: list[Thought] | None = None
    status: str | None = None


def _kind(item: Any) -> Any:
    return item.get("type", "message") if isinstance(item, dict) else getattr(item, "type", None)


Item = Annotated[
    Annotated[MessageItem, Tag("message")]
    | Annotated[CallItem, Tag("function_call")]
    | Annotated[OutputItem, Tag("function_call_output")]
    | Annotated[ReasoningItem, Tag("reasoning")],
    Discriminator(
        _kind,
        custom_error_type="item_unknown",
        custom_error_message="an item is a message, function_call, function_call_output or reasoning",
    ),
]
"""A message may leave its type out."""


def as_items(given: Any) -> Any:
    """A text is a message of the user's."""
    return [{"role": "user", "content": given}] if isinstance(given, str) else given


class FunctionTool(Body):
    """Tools that OpenAI runs itself are refused by their type."""

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: Schema | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        return Tool(
            name=self.name,
            description=self.description or "",
            parameters=self.parameters or {"type": "object", "properties": {}},
        )


def said_in(items: Sequence[MessageItem | CallItem | OutputItem | ReasoningItem]) -> list[Said]:
    """What the model says in one turn comes as its reasoning, then its text, then its calls."""
    said: list[Said] = []
    for item in items:
        if isinstance(item, OutputItem):
            said.append(Said(speaker="tool", text=_joined(item.output, "\n"), answers=item.call_id))
            continue
        if isinstance(item, MessageItem) and item.role != "assistant":
            speaker: Speaker = "user" if item.role == "user" else "system"
            said.append(Said(speaker=speaker, text=_joined(item.content, "\n")))
            continue
        turn = said.pop() if said and said[-1].speaker == "assistant" else Said(speaker="assistant")
        if _begins_another(item, turn):
            said.append(turn)
            turn = Said(speaker="assistant")
        said.append(_with(turn, item))
    return said


def _begins_another(item: MessageItem | CallItem | ReasoningItem, turn: Said) -> bool:
    if isinstance(item, CallItem):
        return False
    return bool(turn.calls or turn.text or (turn.reasoning and isinstance(item, ReasoningItem)))


def _with(turn: Said, item: MessageItem | CallItem | ReasoningItem) -> Said:
    if isinstance(item, CallItem):
        call = ToolCall(call_id=item.call_id, name=item.name, arguments=item.arguments)
        return replace(turn, calls=(*turn.calls, call))
    if isinstance(item, ReasoningItem):
        return replace(turn, reasoning="".join(thought.text for thought in item.content or item.summary))
    return replace(turn, text=_joined(item.content, ""))


def _joined(parts: Sequence[Text | Refusal], between: str) -> str:
    return between.join(part.text for part in parts)
