"""Scoring over HTTP: POST /generate with max_new_tokens 0, as SGLang answers it, and POST /values of a value head."""

from __future__ import annotations

import time
import uuid
from typing import Any

from aiohttp import web

from trimtab.rollout.engines.builtin.messages import GenerateRequest, ValuesRequest, bad_request, parsed
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.queued import ended
from trimtab.rollout.engines.builtin.scheduler import Scheduler
from trimtab.rollout.engines.builtin.scoring import Scoring


class ScoreEndpoint:
    """Requests in, numbers out; the scheduler does the work."""

    def __init__(self, model: EngineModel, scheduler: Scheduler) -> None:
        self._model = model
        self._scheduler = scheduler

    async def logprobs(self, body: GenerateRequest) -> web.Response:
        """Of every token after the first. Its prompts are token ids."""
        if self._model.architecture.value_head:
            raise bad_request("the model has a value head in place of probabilities: ask /values")
        prompts = [prompt for prompt in body.prompts() if isinstance(prompt, list)]
        if body.text is not None:
            raise bad_request("text: give input_ids, whose logprobs these are to be")
        started = time.monotonic()
        scorings = [
            Scoring(
                request_id=request_id,
                input_ids=self._checked(prompt),
                temperature=body.sampling_params.temperature,
            )
            for request_id, prompt in zip(body.request_ids(), prompts, strict=True)
        ]
        await ended(self._scheduler, scorings)
        took = time.monotonic() - started
        answers = [_logprobs_answer(scoring, latency_s=took) for scoring in scorings]
        return web.json_response(answers if body.batched else answers[0])

    async def values(self, request: web.Request) -> web.Response:
        """One number for each token."""
        body = await parsed(request, ValuesRequest)
        if not self._model.architecture.value_head:
            raise bad_request("the engine serves no value head: start it with --value-head")
        scoring = Scoring(request_id=body.rid or uuid.uuid4().hex, input_ids=self._checked(body.input_ids))
        started = time.monotonic()
        await ended(self._scheduler, [scoring])
        meta = _meta(scoring, tokens=len(scoring.numbers), latency_s=time.monotonic() - started)
        return web.json_response({"values": scoring.numbers, "meta_info": meta})

    def _checked(self, tokens: list[int]) -> list[int]:
        shape = self._model.architecture
        if len(tokens) > shape.max_length:
            raise bad_request(f"input_ids has {len(tokens)} tokens, the model takes {shape.max_length}")
        if not self._scheduler.fits(len(tokens)):
            raise bad_request(f"input_ids has {len(tokens)} tokens, more than --max-total-tokens hold")
        if min(tokens) < 0 or max(tokens) >= shape.vocabulary:
            raise bad_request(f"input_ids must lie in [0, {shape.vocabulary})")
        return tokens


def _logprobs_answer(scoring: Scoring, *, latency_s: float) -> dict[str, Any]:
    meta = _meta(scoring, tokens=len(scoring.numbers), latency_s=latency_s)
    # As SGLang does, the first token is there without a logprob. What was aborted has none at all.
    first: list[list[Any]] = [[None, scoring.input_ids[0], None]] if scoring.finish == "length" else []
    told = zip(scoring.numbers, scoring.input_ids[1:], strict=False)
    meta["input_token_logprobs"] = first + [[number, token, None] for number, token in told]
    meta["output_token_logprobs"] = []
    return {"text": "", "output_ids": [], "meta_info": meta}


def _meta(scoring: Scoring, *, tokens: int, latency_s: float) -> dict[str, Any]:
    finish: dict[str, Any] = {"type": scoring.finish}
    finish |= {"length": 0} if scoring.finish == "length" else {"message": "Aborted"}
    version = scoring.weight_version
    return {
        "id": scoring.request_id,
        "finish_reason": finish,
        "prompt_tokens": len(scoring.input_ids),
        "completion_tokens": 0,
        "weight_version": version,
        "weight_versions": [{"version": version, "start": 0, "end": tokens}] if tokens else [],
        "e2e_latency": latency_s,
    }
