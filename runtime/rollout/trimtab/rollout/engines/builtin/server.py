"""SGLang's HTTP endpoints on the built-in engine, so that one client serves both."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trimtab.rollout.engines.builtin.generation import Generation, SamplingParams
from trimtab.rollout.engines.builtin.model import EngineModel, WeightMismatchError
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError, QueueFullError, Scheduler

_COMMAND_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 5.0
_LINGER_S = 2.0
_MAX_BODY = 64 * 1024 * 1024


class GenerateRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    rid: str | None = None
    input_ids: list[int] = Field(min_length=1)
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = False


class PauseRequest(BaseModel):
    mode: Literal["abort", "retract", "in_place"] = "abort"


class AbortRequest(BaseModel):
    rid: str = ""
    abort_all: bool = False


class UpdateFromDiskRequest(BaseModel):
    model_path: Path
    weight_version: str | None = None


Body = TypeVar("Body", bound=BaseModel)


class EngineServer:
    """The endpoints; the scheduler does the work."""

    def __init__(self, model: EngineModel, scheduler: Scheduler, *, model_path: Path) -> None:
        self._model = model
        self._scheduler = scheduler
        self._model_path = model_path
        self._watch: asyncio.Task[None] | None = None
        self.failed = False
        """The model's thread died by itself, and the server leaves because of it."""

    def application(self) -> web.Application:
        application = web.Application(client_max_size=_MAX_BODY)
        application.on_startup.append(self._watch_model)
        application.on_shutdown.append(self._stop_model)
        application.add_routes(
            [
                web.post("/generate", self.generate),
                web.post("/pause_generation", self.pause),
                web.post("/continue_generation", self.resume),
                web.post("/abort_request", self.abort),
                web.post("/update_weights_from_disk", self.update_from_disk),
                web.get("/model_info", self.model_info),
                web.get("/health", self.health),
                web.get("/v1/loads", self.loads),
            ]
        )
        return application

    async def _watch_model(self, application: web.Application) -> None:
        self._watch = asyncio.create_task(self._leave_when_dead())

    async def _leave_when_dead(self) -> None:
        """An engine without its model is of no use: give the answers time to leave, and let someone restart us."""
        await asyncio.wrap_future(self._scheduler.ended)
        self.failed = True
        await asyncio.sleep(_LINGER_S)
        raise web.GracefulExit

    async def _stop_model(self, application: web.Application) -> None:
        """Before connections are closed, so that whoever waits gets its tokens so far, as aborted."""
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.to_thread(self._scheduler.stop, timeout_s=_STOP_TIMEOUT_S)

    async def generate(self, request: web.Request) -> web.Response:
        body = await _parse(request, GenerateRequest)
        self._check_tokens(body)
        seed = body.sampling_params.sampling_seed
        generation = Generation(
            request_id=body.rid or uuid.uuid4().hex,
            input_ids=body.input_ids,
            params=body.sampling_params,
            random=random.Random(seed),  # noqa: S311 - sampling, not secrets; unseeded requests are seeded by the system
        )
        started = time.monotonic()
        try:
            self._scheduler.submit(generation)
            await asyncio.wrap_future(generation.done)
        except QueueFullError as full:
            return _error(429, str(full))
        except EngineDeadError as dead:
            return _error(503, str(dead))
        except asyncio.CancelledError:
            with contextlib.suppress(EngineDeadError):
                self._scheduler.withdraw(generation)  # the client is gone
            raise
        return web.json_response(self._answer(generation, with_logprobs=body.return_logprob, started=started))

    def _check_tokens(self, body: GenerateRequest) -> None:
        length = len(body.input_ids) + body.sampling_params.max_new_tokens
        if length > self._model.max_length:
            raise _bad_request(
                f"input_ids and max_new_tokens make {length} tokens, the model takes {self._model.max_length}"
            )
        if min(body.input_ids) < 0 or max(body.input_ids) >= self._model.vocabulary:
            raise _bad_request(f"input_ids must lie in [0, {self._model.vocabulary})")

    def _answer(self, generation: Generation, *, with_logprobs: bool, started: float) -> dict[str, Any]:
        finish: dict[str, Any] = {"type": generation.finish}
        if generation.finish == "length":
            finish["length"] = len(generation.output_ids)
        elif generation.finish == "stop":
            finish["matched"] = generation.matched
        meta: dict[str, Any] = {
            "id": generation.request_id,
            "finish_reason": finish,
            "prompt_tokens": len(generation.input_ids),
            "completion_tokens": len(generation.output_ids),
            "weight_version": generation.weight_version,
            "e2e_latency": time.monotonic() - started,
        }
        if with_logprobs:
            meta["output_token_logprobs"] = [
                [logprob, token, None]
                for logprob, token in zip(generation.logprobs, generation.output_ids, strict=True)
            ]
        return {"text": "", "output_ids": generation.output_ids, "meta_info": meta}

    async def pause(self, request: web.Request) -> web.Response:
        body = await _parse(request, PauseRequest)
        await _finish(lambda: self._scheduler.pause(body.mode))
        return web.json_response({"status": "ok", "message": f"paused, mode {body.mode}"})

    async def resume(self, request: web.Request) -> web.Response:
        await _finish(self._scheduler.resume)
        return web.json_response({"status": "ok", "message": "continued"})

    async def abort(self, request: web.Request) -> web.Response:
        body = await _parse(request, AbortRequest)
        if body.rid or body.abort_all:
            await _finish(lambda: self._scheduler.abort(None if body.abort_all else body.rid))
        return web.Response()

    async def update_from_disk(self, request: web.Request) -> web.Response:
        body = await _parse(request, UpdateFromDiskRequest)
        try:
            await _finish(lambda: self._scheduler.update_weights(body.model_path, weight_version=body.weight_version))
        except (WeightMismatchError, OSError) as error:
            return web.json_response({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        return web.json_response({"success": True, "message": "updated", "num_paused_requests": 0})

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response(
            {
                "model_path": str(self._model_path),
                "weight_version": self._scheduler.weight_version,
                "is_generation": True,
                "max_model_len": self._model.max_length,
                "vocab_size": self._model.vocabulary,
            }
        )

    async def health(self, request: web.Request) -> web.Response:
        death = self._scheduler.death
        return web.Response() if death is None else _error(503, str(death))

    async def loads(self, request: web.Request) -> web.Response:
        load = {
            "dp_rank": 0,
            "num_running_reqs": self._scheduler.running_requests,
            "num_waiting_reqs": self._scheduler.waiting_requests,
        }
        return web.json_response({"loads": [load]})


async def _parse(request: web.Request, kind: type[Body]) -> Body:
    try:
        return kind.model_validate_json(await request.read() or b"{}")
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc'])) or 'body'}: {problem['msg']}" for problem in error.errors()
        )
        raise _bad_request(problems) from None


async def _finish(command: Callable[[], Future[None]]) -> None:
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT_S):
            await asyncio.wrap_future(command())
    except EngineDeadError as dead:
        raise web.HTTPServiceUnavailable(text=_error(503, str(dead)).text, content_type="application/json") from None
    except TimeoutError:
        message = f"the model did not come to it within {_COMMAND_TIMEOUT_S:.0f} s"
        raise web.HTTPGatewayTimeout(text=_error(504, message).text, content_type="application/json") from None


def _bad_request(message: str) -> web.HTTPBadRequest:
    return web.HTTPBadRequest(text=_error(400, message).text, content_type="application/json")


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": {"message": message}}, status=status)
