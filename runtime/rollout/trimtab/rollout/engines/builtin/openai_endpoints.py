"""POST /v1/completions and GET /v1/models: OpenAI's words for what POST /generate does, over the same queue."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from trimtab.rollout.engines.builtin.generate_endpoint import GenerateEndpoint
from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams, StopStrings, TextCodec
from trimtab.rollout.engines.builtin.messages import GenerateRequest, not_found, parsed

_NonEmpty = Annotated[str, Field(min_length=1)]


class CompletionRequest(BaseModel):
    """One prompt, one choice. Fields that are not here are refused by name; the last two are vLLM's."""

    model_config = ConfigDict(extra="forbid")

    model: str
    prompt: _NonEmpty | Annotated[list[int], Field(min_length=1)]
    max_tokens: int = Field(default=16, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, allow_inf_nan=False)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=-1, ge=-1)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    n: Literal[1] = 1
    seed: int | None = None
    stop: _NonEmpty | tuple[_NonEmpty, ...] = ()
    logprobs: Literal[0, 1] | None = None
    """Of the tokens that were sampled. Those of others are not kept: `top_logprobs` is null."""
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False

    def as_generate(self) -> GenerateRequest:
        text, tokens = (self.prompt, None) if isinstance(self.prompt, str) else (None, list(self.prompt))
        return GenerateRequest(
            text=text,
            input_ids=tokens,
            sampling_params=SamplingParams(
                max_new_tokens=self.max_tokens,
                temperature=self.temperature,
                top_p=self.top_p,
                top_k=self.top_k,
                min_p=self.min_p,
                stop=(self.stop,) if isinstance(self.stop, str) else self.stop,
                sampling_seed=self.seed,
            ),
        )


class OpenAIEndpoints:
    """The model is known by its path, as SGLang names it where nothing else is said."""

    def __init__(
        self, generating: GenerateEndpoint, *, codec: TextCodec | None, served_model: str, max_length: int
    ) -> None:
        self._generating = generating
        self._codec = codec
        self._served_model = served_model
        self._max_length = max_length
        self._started = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        return [web.post("/v1/completions", self.completions), web.get("/v1/models", self.models)]

    async def models(self, request: web.Request) -> web.Response:
        card = {
            "id": self._served_model,
            "object": "model",
            "created": self._started,
            "owned_by": "trimtab",
            "max_model_len": self._max_length,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def completions(self, request: web.Request) -> web.Response:
        body = await parsed(request, CompletionRequest)
        if body.model != self._served_model:
            raise not_found(f"model: {body.model!r} is not served here; GET /v1/models names what is")
        (generation,) = await self._generating.finished(body.as_generate())
        prompt, completion = len(generation.input_ids), len(generation.output_ids)
        return web.json_response(
            {
                "id": f"cmpl-{generation.request_id}",
                "object": "text_completion",
                "created": int(time.time()),
                "model": self._served_model,
                "choices": [self._choice(generation, body)],
                "usage": {
                    "prompt_tokens": prompt,
                    "completion_tokens": completion,
                    "total_tokens": prompt + completion,
                },
            }
        )

    def _choice(self, generation: Generation, body: CompletionRequest) -> dict[str, Any]:
        text = "" if self._codec is None else self._codec.decode(generation.output_ids)
        if isinstance(generation.matched, str):
            text = StopStrings.trimmed(text, generation.matched)
        choice: dict[str, Any] = {
            "index": 0,
            "text": text,
            "finish_reason": generation.finish,
            "stop_reason": generation.matched,
            "logprobs": None,
        }
        if body.logprobs is not None:
            tokens = self._pieces(generation.output_ids, as_ids=body.return_tokens_as_token_ids)
            choice["logprobs"] = {
                "tokens": tokens,
                "token_logprobs": generation.logprobs,
                "text_offset": list(itertools.accumulate(map(len, tokens[:-1]), initial=0)) if tokens else [],
                "top_logprobs": None,
            }
        if body.return_token_ids:
            choice |= {"token_ids": generation.output_ids, "prompt_token_ids": generation.input_ids}
        return choice

    def _pieces(self, tokens: Sequence[int], *, as_ids: bool) -> list[str]:
        if as_ids or self._codec is None:
            return [f"token_id:{token}" for token in tokens]
        return [self._codec.piece(token) for token in tokens]
