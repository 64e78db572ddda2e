"""OpenAI's chat completions: POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Piece, Said
from trimtab.rollout.gateway.protocols.openai_errors import openai_failure
from trimtab.rollout.gateway.protocols.openai_messages import ChatTool, Message, NamedTool
from trimtab.rollout.gateway.protocols.progress import Progress
from trimtab.rollout.gateway.protocols.request_body import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    Choices,
    FieldRefused,
    MinP,
    Penalty,
    Schema,
    Seed,
    Stops,
    Temperature,
    TokenLimit,
    TopK,
    TopP,
    read,
    wished,
)
from trimtab.rollout.gateway.protocols.surface import Stamp, event

DONE = b"data: [DONE]\n\n"
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


class NamedSchema(Body):
    name: str
    description: str | None = None
    schema_: Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextFormat(Body):
    type: Literal["text"]

    def schema_of(self) -> Mapping[str, Any] | None:
        return None


class ObjectFormat(Body):
    type: Literal["json_object"]

    def schema_of(self) -> Mapping[str, Any] | None:
        return _ANY_OBJECT


class SchemaFormat(Body):
    type: Literal["json_schema"]
    json_schema: NamedSchema

    def schema_of(self) -> Mapping[str, Any] | None:
        return _ANY_OBJECT if self.json_schema.schema_ is None else self.json_schema.schema_


class StreamOptions(Body):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(Body):
    """The last group is about accounts, billing and caches of OpenAI's: it has no bearing on an answer."""

    model: str
    messages: Annotated[list[Message], Field(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    max_tokens: TokenLimit | None = None
    max_completion_tokens: TokenLimit | None = None
    stop: Stops | None = None
    tools: Annotated[list[ChatTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    response_format: Annotated[TextFormat | ObjectFormat | SchemaFormat, Field(discriminator="type")] | None = None
    logprobs: Literal[False] | None = None
    """Those that count are kept with the tokens, and trained with; agents are not given them."""

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    reasoning_effort: str | None = None
    verbosity: Literal["low", "medium", "high"] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    metadata: dict[str, Any] | None = None
    modalities: list[Literal["text"]] | None = None
    prediction: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


@dataclass(frozen=True)
class ChatReply:
    request: ChatRequest
    ask: Ask

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def whole(self, answers: Sequence[Answer], stamp: Stamp) -> Mapping[str, Any]:
        choices = [
            {"index": index, "message": _message(answer.said), "logprobs": None, "finish_reason": answer.finish}
            for index, answer in enumerate(answers)
        ]
        return {**_envelope("chat.completion", self.ask, stamp), "choices": choices, "usage": usage(answers)}

    def writer(self, stamp: Stamp) -> ChatWriter:
        options = self.request.stream_options
        return ChatWriter(self.ask, stamp, with_usage=bool(options is not None and options.include_usage))


class ChatWriter:
    """Chunks. Each choice begins with its role and ends with its reason."""

    def __init__(self, ask: Ask, stamp: Stamp, *, with_usage: bool) -> None:
        self._head = _envelope("chat.completion.chunk", ask, stamp)
        self._with_usage = with_usage
        self._progress = [Progress(index) for index in range(ask.count)]
        self._answers: list[Answer] = []

    def begin(self) -> Iterable[bytes]:
        for index in range(len(self._progress)):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def piece(self, piece: Piece) -> Iterable[bytes]:
        progress = self._progress[piece.index]
        begins = progress.take(piece)
        if piece.reasoning:
            yield self._chunk(piece.index, {"reasoning_content": piece.reasoning})
        if piece.text:
            yield self._chunk(piece.index, {"content": piece.text})
        if piece.call is not None:
            call: dict[str, Any] = {"index": progress.call_number, "function": {"arguments": piece.call.arguments}}
            if begins:
                call |= {"id": piece.call.call_id, "type": "function"}
                call["function"] = {"name": piece.call.name, "arguments": piece.call.arguments}
            yield self._chunk(piece.index, {"tool_calls": [call]})

    def answer(self, index: int, answer: Answer) -> Iterable[bytes]:
        for missing in self._progress[index].missing(answer):
            yield from self.piece(missing)
        self._answers.append(answer)
        yield self._chunk(index, {}, finish=answer.finish)

    def end(self) -> Iterable[bytes]:
        if self._with_usage:
            yield event({**self._head, "choices": [], "usage": usage(self._answers)})
        yield DONE

    def fail(self, error: GatewayError) -> Iterable[bytes]:
        yield event(openai_failure(error)[1])

    def _chunk(self, index: int, delta: Mapping[str, Any], *, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**self._head, "choices": [choice], **({"usage": None} if self._with_usage else {})})


class OpenAIChat:
    path = "/v1/chat/completions"

    def read(self, body: bytes) -> ChatReply:
        request = read(ChatRequest, body)
        if request.stream_options is not None and not request.stream:
            raise FieldRefused("stream_options", "only for a stream: set stream to true, or leave it out")
        wishes = wished(
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
            seed=request.seed,
            frequency_penalty=request.frequency_penalty,
            presence_penalty=request.presence_penalty,
            reasoning_effort=request.reasoning_effort,
            verbosity=request.verbosity,
            chat_template_kwargs=request.chat_template_kwargs,
            tool_choice=_chosen(request.tool_choice),
            parallel_tool_calls=False if request.parallel_tool_calls is False else None,
        )
        ask = Ask(
            role=request.model,
            messages=tuple(message.said() for message in request.messages),
            tools=() if request.tool_choice == "none" else tuple(tool.tool() for tool in request.tools or ()),
            count=request.n or 1,
            max_tokens=request.max_completion_tokens or request.max_tokens,
            stop=request.stop or (),
            schema=None if request.response_format is None else request.response_format.schema_of(),
            wishes=wishes,
        )
        return ChatReply(request, ask)

    def failure(self, error: GatewayError) -> tuple[int, Mapping[str, Any]]:
        return openai_failure(error)


def usage(answers: Sequence[Answer]) -> Mapping[str, Any]:
    """The choices of a request share its prompt, which counts once."""
    prompt = max((answer.prompt_tokens for answer in answers), default=0)
    completion = sum(answer.completion_tokens for answer in answers)
    cached = max((answer.cached_tokens for answer in answers), default=0)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def _chosen(choice: str | NamedTool | None) -> str | Mapping[str, str] | None:
    """Where it asks for more than the model's own choice."""
    if isinstance(choice, NamedTool):
        return {"name": choice.function.name}
    return "required" if choice == "required" else None


def _message(said: Said) -> Mapping[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text, "refusal": None}
    if said.reasoning:
        message["reasoning_content"] = said.reasoning
    if said.calls:
        message["content"] = said.text or None
        message["tool_calls"] = [
            {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in said.calls
        ]
    return message


def _envelope(kind: str, ask: Ask, stamp: Stamp) -> dict[str, Any]:
    return {"id": f"chatcmpl-{stamp.ident}", "object": kind, "created": stamp.created, "model": ask.role}
