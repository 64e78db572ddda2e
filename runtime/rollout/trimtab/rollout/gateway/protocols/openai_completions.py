"""OpenAI's completions: POST /v1/completions. The text goes to the model as it is, without a chat template."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from trimtab.rollout.gateway.exchange import Answer, Ask, GatewayError, Piece
from trimtab.rollout.gateway.protocols.openai_chat import DONE, StreamOptions, usage
from trimtab.rollout.gateway.protocols.openai_errors import openai_failure
from trimtab.rollout.gateway.protocols.progress import Progress
from trimtab.rollout.gateway.protocols.request_body import (
    Body,
    Choices,
    FieldRefused,
    MinP,
    Penalty,
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

_MAX_TOKENS = 16
"""OpenAI's own default, which agents that leave it out rely on."""


def _only_one(given: Any) -> Any:
    return given[0] if isinstance(given, list) and len(given) == 1 else given


class CompletionRequest(Body):
    """The last group has no bearing on an answer."""

    model: str
    prompt: Annotated[str, Field(min_length=1), BeforeValidator(_only_one)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Choices | None = None
    best_of: Choices | None = None
    max_tokens: TokenLimit | None = None
    stop: Stops | None = None
    echo: Literal[False] | None = None

    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    seed: Seed | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None

    user: str | None = None


@dataclass(frozen=True)
class CompletionReply:
    request: CompletionRequest
    ask: Ask

    @property
    def streams(self) -> bool:
        return bool(self.request.stream)

    def whole(self, answers: Sequence[Answer], stamp: Stamp) -> Mapping[str, Any]:
        choices = [
            _choice(index, answer.said.reasoning + answer.said.text, finish=_reason(answer))
            for index, answer in enumerate(answers)
        ]
        return {**_envelope(self.ask, stamp), "choices": choices, "usage": usage(answers)}

    def writer(self, stamp: Stamp) -> CompletionWriter:
        options = self.request.stream_options
        return CompletionWriter(self.ask, stamp, with_usage=bool(options is not None and options.include_usage))


class CompletionWriter:
    def __init__(self, ask: Ask, stamp: Stamp, *, with_usage: bool) -> None:
        self._head = _envelope(ask, stamp)
        self._with_usage = with_usage
        self._progress = [Progress(index) for index in range(ask.count)]
        self._answers: list[Answer] = []

    def begin(self) -> Iterable[bytes]:
        return ()

    def piece(self, piece: Piece) -> Iterable[bytes]:
        self._progress[piece.index].take(piece)
        if text := piece.reasoning + piece.text:
            yield self._chunk(_choice(piece.index, text))

    def answer(self, index: int, answer: Answer) -> Iterable[bytes]:
        for missing in self._progress[index].missing(answer):
            yield from self.piece(missing)
        self._answers.append(answer)
        yield self._chunk(_choice(index, "", finish=_reason(answer)))

    def end(self) -> Iterable[bytes]:
        if self._with_usage:
            yield event({**self._head, "choices": [], "usage": usage(self._answers)})
        yield DONE

    def fail(self, error: GatewayError) -> Iterable[bytes]:
        yield event(openai_failure(error)[1])

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        return event({**self._head, "choices": [choice], **({"usage": None} if self._with_usage else {})})


class OpenAICompletions:
    path = "/v1/completions"

    def read(self, body: bytes) -> CompletionReply:
        request = read(CompletionRequest, body)
        count = request.n or 1
        if request.best_of not in (None, count):
            raise FieldRefused("best_of", f"every choice is returned, and n is {count}: leave best_of out")
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
        )
        ask = Ask(
            role=request.model,
            messages=request.prompt,
            count=count,
            max_tokens=request.max_tokens or _MAX_TOKENS,
            stop=request.stop or (),
            wishes=wishes,
        )
        return CompletionReply(request, ask)

    def failure(self, error: GatewayError) -> tuple[int, Mapping[str, Any]]:
        return openai_failure(error)


def _reason(answer: Answer) -> str:
    return "length" if answer.finish == "length" else "stop"


def _choice(index: int, text: str, *, finish: str | None = None) -> Mapping[str, Any]:
    return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}


def _envelope(ask: Ask, stamp: Stamp) -> dict[str, Any]:
    return {"id": f"cmpl-{stamp.ident}", "object": "text_completion", "created": stamp.created, "model": ask.role}
