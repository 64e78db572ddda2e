"""Messages and tools as Anthropic writes them, read into what was said: a message is a list of blocks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trimtab.rollout.gateway.exchange import Said, Tool, ToolCall
from trimtab.rollout.gateway.protocols.request_body import Body, CalledName, CallId, Name, Schema
from trimtab.rollout.gateway.protocols.surface import compact

_UNREADABLE = "unreadable_arguments"
"""The protocol has only JSON objects for arguments. A model that learns may write something else: it is told so under
this name, and found again when it is sent back."""


def _as_blocks(given: Any) -> Any:
    if isinstance(given, str):
        return [{"type": "text", "text": given}]
    return [] if given is None else given


class TextBlock(Body):
    """Images and documents are refused by their type. What is said about caches has no bearing on an answer."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, Any] | None = None
    parsed_output: Any = None


Texts = Annotated[list[TextBlock], BeforeValidator(_as_blocks)]


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: CallId
    name: CalledName
    input: dict[str, Any]
    cache_control: dict[str, Any] | None = None
    caller: dict[str, Any] | None = None


class ToolResultBlock(Body):
    """`is_error` is for the agent's own records: what a tool said is text to a chat template, right or wrong."""

    type: Literal["tool_result"]
    tool_use_id: CallId
    content: Texts = Field(default_factory=list)
    is_error: bool | None = None
    cache_control: dict[str, Any] | None = None


UserBlocks = Annotated[
    list[Annotated[TextBlock | ToolResultBlock, Field(discriminator="type")]], BeforeValidator(_as_blocks)
]
OwnBlocks = Annotated[
    list[Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]], BeforeValidator(_as_blocks)
]


class UserMessage(Body):
    role: Literal["user"]
    content: UserBlocks

    def said(self) -> list[Said]:
        """Results come before other words, as the protocol demands."""
        results = [block for block in self.content if isinstance(block, ToolResultBlock)]
        said = [Said(speaker="tool", text=lines(block.content), answers=block.tool_use_id) for block in results]
        words = [block for block in self.content if isinstance(block, TextBlock)]
        if words or not results:
            said.append(Said(speaker="user", text=lines(words)))
        return said


class AssistantMessage(Body):
    role: Literal["assistant"]
    content: OwnBlocks

    def said(self) -> list[Said]:
        calls = tuple(
            ToolCall(call_id=block.id, name=block.name, arguments=_arguments(block.input))
            for block in self.content
            if isinstance(block, ToolUseBlock)
        )
        return [
            Said(
                speaker="assistant",
                text="".join(block.text for block in self.content if isinstance(block, TextBlock)),
                reasoning="".join(block.thinking for block in self.content if isinstance(block, ThinkingBlock)),
                calls=calls,
            )
        ]


class SystemMessage(Body):
    role: Literal["system"]
    content: Texts

    def said(self) -> list[Said]:
        return [Said(speaker="system", text=lines(self.content))]


Message = Annotated[UserMessage | AssistantMessage | SystemMessage, Field(discriminator="role")]


class CustomTool(Body):
    """Tools that Anthropic defines or runs itself are refused by their type."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Schema
    cache_control: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        return Tool(name=self.name, description=self.description or "", parameters=self.input_schema)


def lines(blocks: Sequence[TextBlock]) -> str:
    """Blocks of others' messages are paragraphs; those of the model's own are pieces of one text."""
    return "\n".join(block.text for block in blocks)


def input_of(call: ToolCall) -> Mapping[str, Any]:
    """The arguments as the protocol has them."""
    try:
        read = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {_UNREADABLE: call.arguments}


def _arguments(given: Mapping[str, Any]) -> str:
    unreadable = given.get(_UNREADABLE)
    return unreadable if isinstance(unreadable, str) and len(given) == 1 else compact(given)
