"""Anthropic's messages: POST /v1/messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from trimtab.rollout.gateway.exchange import (
    Answer,
    Ask,
    BudgetSpent,
    GatewayError,
    Piece,
    Refused,
    Said,
    ToolCall,
    Unavailable,
    UnknownRole,
)
from trimtab.rollout.gateway.protocols.anthropic_blocks import CustomTool, Message, Texts, input_of, lines
from trimtab.rollout.gateway.protocols.progress import Progress
from trimtab.rollout.gateway.protocols.request_body import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    FieldRefused,
    Name,
    Schema,
    Stops,
    Temperature,
    TokenLimit,
    TopK,
    TopP,
    read,
    wished,
)
from trimtab.rollout.gateway.protocols.surface import NotFound, Stamp, TooLarge, Unauthorized, compact, event

_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
_KINDS: Mapping[type[GatewayError], tuple[int, str]] = {
    Unauthorized: (401, "authentication_error"),
    NotFound: (404, "not_found_error"),
    UnknownRole: (404, "not_found_error"),
    TooLarge: (413, "request_too_large"),
    Refused: (400, "invalid_request_error"),
    # What an account without money is told: agents know that waiting does not help.
    BudgetSpent: (400, "invalid_request_error"),
    Unavailable: (503, "api_error"),
}
_OTHER = (500, "api_error")


class Thinking(Body):
    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: TokenLimit | None = None
    display: str | None = None


class ToolChoice(Body):
    type: Literal["auto", "any", "none", "tool"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


class Format(Body):
    type: Literal["json_schema"]
    schema_: Schema = Field(alias="schema")


class OutputSettings(Body):
    format: Format | None = None
    effort: str | None = None


class MessagesRequest(Body):
    """The last group is about accounts, billing and caches of Anthropic's: it has no bearing on an answer."""

    model: str
    max_tokens: TokenLimit
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    system: Texts | None = None
    stream: bool | None = None
    stop_sequences: Stops | None = None
    tools: Annotated[list[CustomTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputSettings | None = None

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None

    cache_control: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    @property
    def shows_thoughts(self) -> bool:
        """Agents that did not ask for thoughts take the first block for the text."""
        return self.thinking is not None and self.thinking.type != "disabled"


@dataclass(frozen=True)
class MessagesReply:
    request: MessagesRequest
    ask: Ask

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def whole(self, answers: Sequence[Answer], stamp: Stamp) -> Mapping[str, Any]:
        (answer,) = answers
        said = answer.said
        content: list[Mapping[str, Any]] = []
        if said.reasoning and self.request.shows_thoughts:
            content.append({"type": "thinking", "thinking": said.reasoning, "signature": ""})
        if said.text:
            content.append({"type": "text", "text": said.text})
        content += [
            {"type": "tool_use", "id": call.call_id, "name": call.name, "input": input_of(call)} for call in said.calls
        ]
        message = _envelope(self.ask, stamp)
        return {**message, "content": content, "stop_reason": _REASONS[answer.finish], "usage": _usage(answer)}

    def writer(self, stamp: Stamp) -> MessagesWriter:
        return MessagesWriter(self.ask, stamp, thoughts=self.request.shows_thoughts)


class MessagesWriter:
    """One block is open at a time. A call is sent when its arguments are whole: only then is it known to be JSON, and
    clients give up at what is not.
    """

    def __init__(self, ask: Ask, stamp: Stamp, *, thoughts: bool) -> None:
        self._message = _envelope(ask, stamp)
        self._thoughts = thoughts
        self._progress = Progress(0)
        self._blocks = 0
        self._open: str | None = None
        self._call: ToolCall | None = None
        self._answer: Answer | None = None

    def begin(self) -> Iterable[bytes]:
        usage = {"input_tokens": 0, "output_tokens": 0}
        yield _event("message_start", message={**self._message, "content": [], "stop_reason": None, "usage": usage})

    def piece(self, piece: Piece) -> Iterable[bytes]:
        begins = self._progress.take(piece)
        if piece.reasoning and self._thoughts:
            yield from self._opened("thinking", {"thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": piece.reasoning})
        if piece.text:
            yield from self._opened("text", {"text": ""})
            yield self._delta({"type": "text_delta", "text": piece.text})
        if piece.call is not None:
            if begins or self._call is None:
                yield from self._close()
                self._call = piece.call
            else:
                self._call = replace(self._call, arguments=self._call.arguments + piece.call.arguments)

    def answer(self, index: int, answer: Answer) -> Iterable[bytes]:
        for missing in self._progress.missing(answer):
            yield from self.piece(missing)
        yield from self._close()
        self._answer = answer

    def end(self) -> Iterable[bytes]:
        assert self._answer is not None
        delta = {"stop_reason": _REASONS[self._answer.finish], "stop_sequence": None}
        yield _event("message_delta", delta=delta, usage=_usage(self._answer))
        yield _event("message_stop")

    def fail(self, error: GatewayError) -> Iterable[bytes]:
        yield event(_failure(error)[1], name="error")

    def _opened(self, kind: str, empty: Mapping[str, Any]) -> Iterable[bytes]:
        if self._open == kind:
            return
        yield from self._close()
        self._open = kind
        yield _event("content_block_start", index=self._blocks, content_block={"type": kind, **empty})

    def _delta(self, delta: Mapping[str, Any]) -> bytes:
        return _event("content_block_delta", index=self._blocks, delta=delta)

    def _close(self) -> Iterable[bytes]:
        if self._call is not None:
            call, self._call = self._call, None
            yield from self._opened("tool_use", {"id": call.call_id, "name": call.name, "input": {}})
            yield self._delta({"type": "input_json_delta", "partial_json": compact(input_of(call))})
        if self._open is not None:
            self._open = None
            yield _event("content_block_stop", index=self._blocks)
            self._blocks += 1


class AnthropicMessages:
    path = "/v1/messages"

    def read(self, body: bytes) -> MessagesReply:
        request = read(MessagesRequest, body)
        said = [one for message in request.messages for one in message.said()]
        if request.system:
            said.insert(0, Said(speaker="system", text=lines(request.system)))
        if request.tool_choice is not None and (request.tool_choice.type == "tool") != bool(request.tool_choice.name):
            raise FieldRefused("tool_choice.name", "goes with type tool, and with no other")
        choice, output = request.tool_choice or ToolChoice(type="auto"), request.output_config or OutputSettings()
        wishes = wished(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            reasoning_effort=output.effort,
            thinking=None if request.thinking is None else request.thinking.type,
            tool_choice={"any": "required", "tool": {"name": choice.name}}.get(choice.type),
            parallel_tool_calls=False if choice.disable_parallel_tool_use else None,
        )
        ask = Ask(
            role=request.model,
            messages=tuple(said),
            tools=() if choice.type == "none" else tuple(tool.tool() for tool in request.tools or ()),
            max_tokens=request.max_tokens,
            stop=request.stop_sequences or (),
            schema=None if output.format is None else output.format.schema_,
            wishes=wishes,
        )
        return MessagesReply(request, ask)

    def failure(self, error: GatewayError) -> tuple[int, Mapping[str, Any]]:
        return _failure(error)


def _failure(error: GatewayError) -> tuple[int, Mapping[str, Any]]:
    status, kind = next((told for cls, told in _KINDS.items() if isinstance(error, cls)), _OTHER)
    return status, {"type": "error", "error": {"type": kind, "message": error.message}}


def _usage(answer: Answer) -> Mapping[str, int]:
    """What was cached is not counted again among the input."""
    return {
        "input_tokens": answer.prompt_tokens - answer.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": answer.cached_tokens,
        "output_tokens": answer.completion_tokens,
    }


def _envelope(ask: Ask, stamp: Stamp) -> dict[str, Any]:
    return {
        "id": f"msg_{stamp.ident}",
        "type": "message",
        "role": "assistant",
        "model": ask.role,
        "stop_sequence": None,
    }


def _event(name: str, **data: Any) -> bytes:
    return event({"type": name, **data}, name=name)
