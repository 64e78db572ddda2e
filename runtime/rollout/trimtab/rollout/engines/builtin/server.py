"""SGLang's HTTP endpoints on the built-in engine, so that one client serves both; OpenAI's two for other clients."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

from aiohttp import web

from trimtab.rollout.engines.builtin.control_endpoints import ControlEndpoints
from trimtab.rollout.engines.builtin.generate_endpoint import GenerateEndpoint
from trimtab.rollout.engines.builtin.generation import TextCodec
from trimtab.rollout.engines.builtin.messages import error_response
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.openai_endpoints import OpenAIEndpoints
from trimtab.rollout.engines.builtin.scheduler import Scheduler
from trimtab.rollout.engines.builtin.score_endpoint import ScoreEndpoint

_STOP_TIMEOUT_S = 5.0
_MAX_BODY = 64 * 1024 * 1024


class EngineServer:
    """The application and its life; it ends `linger_s` after the model's thread, by when the answers have left."""

    def __init__(
        self,
        model: EngineModel,
        scheduler: Scheduler,
        *,
        model_path: Path,
        tokenizer_path: Path | None = None,
        seeds: random.Random,
        linger_s: float = 2.0,
    ) -> None:
        self._model = model
        self._scheduler = scheduler
        self._model_path = model_path
        self._linger_s = linger_s
        codec = TextCodec.find(tokenizer_path or model_path)
        self._scoring = ScoreEndpoint(model, scheduler)
        self._generating = GenerateEndpoint(model, scheduler, self._scoring, codec=codec, seeds=seeds)
        self._openai = OpenAIEndpoints(
            self._generating, codec=codec, served_model=str(model_path), max_length=model.architecture.max_length
        )
        self._controlling = ControlEndpoints(model, scheduler)
        self._watch: asyncio.Task[None] | None = None
        self.failed = False
        """The model's thread died by itself, and the server leaves because of it."""

    def application(self) -> web.Application:
        application = web.Application(client_max_size=_MAX_BODY)
        application.on_startup.append(self._watch_model)
        application.on_shutdown.append(self._stop_model)
        application.add_routes(
            [
                web.post("/generate", self._generating.generate),
                web.put("/generate", self._generating.generate),
                web.post("/values", self._scoring.values),
                web.get("/health_generate", self._generating.health_generate),
                *self._controlling.routes(),
                *self._openai.routes(),
                web.get("/model_info", self.model_info),
                web.get("/get_model_info", self.model_info),
                web.get("/server_info", self.server_info),
                web.get("/get_server_info", self.server_info),
                web.get("/health", self.health),
                web.get("/v1/loads", self.loads),
                web.get("/metrics", self.metrics),
            ]
        )
        return application

    async def _watch_model(self, application: web.Application) -> None:
        self._watch = asyncio.create_task(self._leave_when_dead())

    async def _leave_when_dead(self) -> None:
        """An engine without its model is of no use: give the answers time to leave, and let someone restart us."""
        await asyncio.wrap_future(self._scheduler.ended)
        self.failed = True
        await asyncio.sleep(self._linger_s)
        raise web.GracefulExit

    async def _stop_model(self, application: web.Application) -> None:
        """Before connections are closed, so that every waiting request gets its tokens so far, as aborted."""
        assert self._watch is not None
        self._watch.cancel()
        await asyncio.to_thread(self._scheduler.stop, timeout_s=_STOP_TIMEOUT_S)

    async def model_info(self, request: web.Request) -> web.Response:
        return web.json_response(self._info())

    async def server_info(self, request: web.Request) -> web.Response:
        load = self._scheduler.load
        limits = self._scheduler.limits
        return web.json_response(
            self._info()
            | {
                "engine": "trimtab-builtin",
                "is_paused": self._scheduler.paused,
                "max_running_requests": limits.max_running,
                "max_total_num_tokens": limits.max_total_tokens,
                "max_cached_tokens": limits.max_cached_tokens,
                "chunked_prefill_size": limits.prefill_tokens,
                "cached_tokens": load.kept_tokens,
            }
        )

    def _info(self) -> dict[str, Any]:
        return {
            "model_path": str(self._model_path),
            "weight_version": self._scheduler.weight_version,
            "is_generation": not self._model.architecture.value_head,
            "max_model_len": self._model.architecture.max_length,
            "vocab_size": self._model.architecture.vocabulary,
        }

    async def health(self, request: web.Request) -> web.Response:
        death = self._scheduler.death
        return web.Response() if death is None else error_response(503, str(death))

    async def loads(self, request: web.Request) -> web.Response:
        load = self._scheduler.load
        total = self._scheduler.limits.max_total_tokens
        answer = {
            "dp_rank": 0,
            "num_running_reqs": load.running,
            "num_waiting_reqs": load.waiting,
            "num_used_tokens": load.used_tokens,
            "num_total_tokens": total,
            "token_usage": load.used_tokens / total,
        }
        return web.json_response({"loads": [answer]})

    async def metrics(self, request: web.Request) -> web.Response:
        """In Prometheus' text format, under SGLang's names."""
        load = self._scheduler.load
        lines: list[str] = []
        for name, kind, value in (
            ("num_running_reqs", "gauge", load.running),
            ("num_queue_reqs", "gauge", load.waiting),
            ("num_used_tokens", "gauge", load.used_tokens),
            ("generation_tokens_total", "counter", load.generated_tokens),
            ("prompt_tokens_total", "counter", load.prompt_tokens),
            ("cached_tokens_total", "counter", load.cached_tokens),
        ):
            lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name} {value}"]
        return web.Response(text="\n".join(lines) + "\n")
