"""OpenAI's responses: POST /v1/responses. Nothing is kept between requests: every one brings its whole history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Said
from trimtab.rollout.gateway.protocols.openai_errors import openai_failure
from trimtab.rollout.gateway.protocols.request_body import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    FieldRefused,
    Name,
    Schema,
    Temperature,
    TokenLimit,
    TopP,
    read,
    wished,
)
from trimtab.rollout.gateway.protocols.responses_items import FunctionTool, Item, as_items, said_in
from trimtab.rollout.gateway.protocols.responses_stream import Form, ResponseWriter, items_of
from trimtab.rollout.gateway.protocols.surface import Stamp


class PlainFormat(Body):
    type: Literal["text", "json_object"]

    def schema_of(self) -> Mapping[str, Any] | None:
        return None if self.type == "text" else {"type": "object"}


class SchemaFormat(Body):
    type: Literal["json_schema"]
    name: str
    schema_: Schema = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None

    def schema_of(self) -> Mapping[str, Any] | None:
        return self.schema_


class TextSettings(Body):
    format: Annotated[PlainFormat | SchemaFormat, Field(discriminator="type")] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Body):
    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class NamedTool(Body):
    type: Literal["function"]
    name: Name


class StreamOptions(Body):
    include_obfuscation: bool | None = None


class ResponseRequest(Body):
    """The last group is about accounts, billing and caches of OpenAI's: it has no bearing on an answer."""

    model: str
    input: Annotated[list[Item], Field(min_length=1, max_length=MAX_MESSAGES), BeforeValidator(as_items)]
    instructions: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_output_tokens: TokenLimit | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["auto", "none", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextSettings | None = None
    include: list[Literal["reasoning.encrypted_content"]] | None = None
    """Thoughts come in the open, and are taken back so."""
    truncation: Literal["disabled"] | None = None
    background: Literal[False] | None = None
    previous_response_id: str | None = None

    temperature: Temperature | None = None
    top_p: TopP | None = None
    reasoning: Reasoning | None = None

    metadata: dict[str, Any] | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None
    store: bool | None = None
    user: str | None = None


@dataclass(frozen=True)
class ResponseReply:
    request: ResponseRequest
    ask: Ask

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def whole(self, answers: Sequence[Answer], stamp: Stamp) -> Mapping[str, Any]:
        (answer,) = answers
        return self._form(stamp).finished(answer, items_of(answer, stamp))

    def writer(self, stamp: Stamp) -> ResponseWriter:
        return ResponseWriter(self._form(stamp), stamp)

    def _form(self, stamp: Stamp) -> Form:
        """What a response repeats of its request."""
        request = self.request
        choice = request.tool_choice
        repeated = {
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": None if request.reasoning is None else request.reasoning.model_dump(),
            "temperature": request.temperature,
            "text": {"format": {"type": "text"}} if request.text is None else _dumped(request.text),
            "tool_choice": _dumped(choice) if isinstance(choice, NamedTool) else choice or "auto",
            "tools": [_dumped(tool) for tool in request.tools or ()],
            "top_p": request.top_p,
            "truncation": "disabled",
        }
        return Form(role=self.ask.role, stamp=stamp, repeated=repeated)


class OpenAIResponses:
    path = "/v1/responses"

    def read(self, body: bytes) -> ResponseReply:
        request = read(ResponseRequest, body)
        if request.previous_response_id is not None:
            raise FieldRefused(
                "previous_response_id", "responses are not kept here: send the whole history as input, with store=false"
            )
        said = said_in(request.input)
        if request.instructions:
            said.insert(0, Said(speaker="system", text=request.instructions))
        text, reasoning = request.text or TextSettings(), request.reasoning or Reasoning()
        choice = request.tool_choice
        wishes = wished(
            temperature=request.temperature,
            top_p=request.top_p,
            reasoning_effort=reasoning.effort,
            verbosity=text.verbosity,
            tool_choice={"name": choice.name} if isinstance(choice, NamedTool) else _required(choice),
            parallel_tool_calls=False if request.parallel_tool_calls is False else None,
        )
        ask = Ask(
            role=request.model,
            messages=tuple(said),
            tools=() if choice == "none" else tuple(tool.tool() for tool in request.tools or ()),
            max_tokens=request.max_output_tokens,
            schema=None if text.format is None else text.format.schema_of(),
            wishes=wishes,
        )
        return ResponseReply(request, ask)

    def failure(self, error: GatewayError) -> tuple[int, Mapping[str, Any]]:
        return openai_failure(error)


def _required(choice: str | None) -> str | None:
    """Where it asks for more than the model's own choice."""
    return "required" if choice == "required" else None


def _dumped(body: Body) -> dict[str, Any]:
    return body.model_dump(by_alias=True, exclude_unset=True)
