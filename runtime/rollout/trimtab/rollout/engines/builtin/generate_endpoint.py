"""POST /generate: checks a request against the model, queues it, and answers in SGLang's shape."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from typing import Any

from aiohttp import web

from trimtab.rollout.engines.builtin.generate_response import (
    NO_MORE,
    ComingTokens,
    StreamedParts,
    event,
    logprobs_info,
    meta_info,
)
from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams, StopStrings, TextCodec
from trimtab.rollout.engines.builtin.messages import (
    GenerateRequest,
    bad_request,
    error_response,
    parsed,
    too_many_requests,
    unavailable,
)
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.queued import ended, withdraw
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError, QueueFullError, Scheduler
from trimtab.rollout.engines.builtin.score_endpoint import ScoreEndpoint

_SEED_BITS = 64
_HEALTH_TIMEOUT_S = 20.0


class GenerateEndpoint:
    """Requests in, answers out; the scheduler does the work. Unseeded requests take their seed from `seeds`."""

    def __init__(
        self,
        model: EngineModel,
        scheduler: Scheduler,
        scoring: ScoreEndpoint,
        *,
        codec: TextCodec | None,
        seeds: random.Random,
    ) -> None:
        """`scoring` answers those that ask for no token."""
        self._scoring = scoring
        self._model = model
        self._scheduler = scheduler
        self._codec = codec
        self._seeds = seeds

    async def generate(self, request: web.Request) -> web.StreamResponse:
        body = await parsed(request, GenerateRequest)
        if body.scores:
            return await self._scoring.logprobs(body)
        if body.stream:
            return await self._stream(request, body)
        started = time.monotonic()
        generations = await self.finished(body)
        took = time.monotonic() - started
        answers = [self._answer(each, with_logprobs=body.return_logprob, latency_s=took) for each in generations]
        return web.json_response(answers if body.batched else answers[0])

    async def finished(self, body: GenerateRequest) -> list[Generation]:
        """One generation per prompt, at its end. Raises the answer to give where there is none."""
        generations = self._generations(body)
        await ended(self._scheduler, generations)
        return generations

    async def health_generate(self, request: web.Request) -> web.Response:
        """A token is sampled; while the engine is paused or full, it is enough that the model's thread answers."""
        probe = Generation(
            request_id=f"HEALTH_CHECK_{uuid.uuid4().hex}",
            input_ids=[0],
            params=SamplingParams(max_new_tokens=1, temperature=0.0),
            seed=0,
        )
        try:
            answer = self._scheduler.on_model(lambda _: None)
            if not self._scheduler.paused and not self._model.architecture.value_head:
                with contextlib.suppress(QueueFullError):
                    self._scheduler.submit(probe)
                    answer = probe.done
            async with asyncio.timeout(_HEALTH_TIMEOUT_S):
                await asyncio.wrap_future(answer)
        except EngineDeadError as dead:
            return error_response(503, str(dead))
        except TimeoutError:
            withdraw(self._scheduler, [probe])
            return error_response(503, f"no token within {_HEALTH_TIMEOUT_S:.0f} s")
        return web.Response()

    def _generations(self, body: GenerateRequest) -> list[Generation]:
        if self._model.architecture.value_head:
            raise bad_request("the model has a value head in place of probabilities: ask /values")
        prompts = body.prompts()
        params = body.sampling_params
        stop = StopStrings(self._text_codec("stop"), params.stop) if params.stop else None
        return [
            Generation(
                request_id=request_id,
                input_ids=self._checked(prompt, params),
                params=params,
                seed=self._seeds.getrandbits(_SEED_BITS) if params.sampling_seed is None else params.sampling_seed,
                stop_strings=stop,
            )
            for request_id, prompt in zip(body.request_ids(), prompts, strict=True)
        ]

    def _text_codec(self, field: str) -> TextCodec:
        if self._codec is None:
            raise bad_request(f"{field}: the checkpoint has no tokenizer.json, so the engine takes token ids alone")
        return self._codec

    def _checked(self, prompt: str | list[int], params: SamplingParams) -> list[int]:
        tokens = self._text_codec("text").encode(prompt) if isinstance(prompt, str) else prompt
        shape = self._model.architecture
        length = len(tokens) + params.max_new_tokens
        if length > shape.max_length:
            raise bad_request(f"input_ids and max_new_tokens make {length} tokens, the model takes {shape.max_length}")
        if not self._scheduler.fits(length):
            raise bad_request(f"input_ids and max_new_tokens make {length} tokens, more than --max-total-tokens hold")
        if min(tokens) < 0 or max(tokens) >= shape.vocabulary:
            raise bad_request(f"input_ids must lie in [0, {shape.vocabulary})")
        return tokens

    async def _stream(self, request: web.Request, body: GenerateRequest) -> web.StreamResponse:
        """What is refused is refused with a status, before the stream begins."""
        started = time.monotonic()
        (generation,) = self._generations(body)
        coming = ComingTokens(asyncio.get_running_loop())
        generation.on_token = coming.add
        generation.done.add_done_callback(coming.end)
        try:
            self._scheduler.submit(generation)
        except QueueFullError as full:
            raise too_many_requests(str(full)) from None
        except EngineDeadError as dead:
            raise unavailable(str(dead)) from None
        response = web.StreamResponse(headers={"Cache-Control": "no-cache"})
        response.content_type = "text/event-stream"
        parts = StreamedParts(self._codec, generation, with_logprobs=body.return_logprob)
        try:
            await response.prepare(request)
            while (tokens := await coming.more()) is not None:
                await response.write(event(parts.part(tokens)))
            try:
                generation.done.result()
            except EngineDeadError as dead:
                last: dict[str, Any] = {"error": {"message": str(dead), "code": 503}}
            else:
                last = parts.end(latency_s=time.monotonic() - started)
            await response.write(event(last) + NO_MORE)
            await response.write_eof()
        finally:
            if not generation.done.done():
                withdraw(self._scheduler, [generation])  # the client is gone
        return response

    def _answer(self, generation: Generation, *, with_logprobs: bool, latency_s: float) -> dict[str, Any]:
        meta = meta_info(generation, latency_s=latency_s)
        if with_logprobs:
            meta |= logprobs_info(
                zip(generation.output_ids, generation.logprobs, strict=True), total=len(generation.output_ids)
            )
        text = "" if self._codec is None else self._codec.decode(generation.output_ids)
        if isinstance(generation.matched, str):
            text = StopStrings.trimmed(text, generation.matched)
        return {"text": text, "output_ids": generation.output_ids, "meta_info": meta}
