"""The endpoints that a pool uses to steer its engine: pauses, aborts, the cache, and new weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aiohttp import web

from trimtab.rollout.engines.builtin.messages import (
    AbortRequest,
    PauseRequest,
    UpdateFromDiskRequest,
    UpdateVersionRequest,
    WeightsCheckerRequest,
    bad_request,
    carried_out,
    error_response,
    parsed,
)
from trimtab.rollout.engines.builtin.model import EngineModel
from trimtab.rollout.engines.builtin.scheduler import EngineBusyError, Scheduler
from trimtab.rollout.engines.builtin.sparse_update import WeightMismatchError, read_sparse_update

_FLUSH_POLL_S = 0.05


class ControlEndpoints:
    """Commands to the scheduler. Weights are read and checked before the model's thread is asked to stop for them."""

    def __init__(self, model: EngineModel, scheduler: Scheduler) -> None:
        self._model = model
        self._scheduler = scheduler
        # Two updates at once would take the memory of three models, and end in either order.
        self._updating = asyncio.Lock()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/pause_generation", self.pause),
            web.post("/continue_generation", self.resume),
            web.post("/abort_request", self.abort),
            web.get("/flush_cache", self.flush_cache),
            web.post("/flush_cache", self.flush_cache),
            web.post("/update_weights_from_disk", self.update_from_disk),
            web.post("/update_weight_version", self.update_version),
            web.post("/weights_checker", self.weights_checker),
        ]

    async def pause(self, request: web.Request) -> web.Response:
        body = await parsed(request, PauseRequest)
        await carried_out(lambda: self._scheduler.pause(body.mode))
        return web.json_response({"status": "ok", "message": f"paused, mode {body.mode}"})

    async def resume(self, request: web.Request) -> web.Response:
        await carried_out(self._scheduler.resume)
        return web.json_response({"status": "ok", "message": "continued"})

    async def abort(self, request: web.Request) -> web.Response:
        body = await parsed(request, AbortRequest)
        if body.rid or body.abort_all:
            await carried_out(lambda: self._scheduler.abort(None if body.abort_all else body.rid))
        return web.Response()

    async def flush_cache(self, request: web.Request) -> web.Response:
        """400 while requests are held, at once or after `timeout` seconds."""
        try:
            patience_s = float(request.query.get("timeout", "0"))
        except ValueError:
            raise bad_request("timeout must be a number of seconds") from None
        end = asyncio.get_running_loop().time() + patience_s
        while True:
            try:
                await carried_out(self._scheduler.flush_cache)
            except EngineBusyError as busy:
                if asyncio.get_running_loop().time() + _FLUSH_POLL_S > end:
                    return error_response(400, str(busy))
                await asyncio.sleep(_FLUSH_POLL_S)
            else:
                return web.Response(text="Cache flushed.\n")

    async def update_from_disk(self, request: web.Request) -> web.Response:
        body = await parsed(request, UpdateFromDiskRequest)
        held = self._scheduler.load
        paused = held.running + held.waiting if self._scheduler.paused else 0
        try:
            async with self._updating:
                if body.abort_all_requests:
                    await carried_out(lambda: self._scheduler.abort(None))
                if body.load_format == "sparse" and body.weight_version is not None:
                    await self._write_sparse(body.model_path, body.weight_version)
                else:
                    await self._install(body.model_path, body.weight_version)
        except (WeightMismatchError, OSError) as error:
            return web.json_response({"success": False, "message": str(error), "num_paused_requests": 0}, status=400)
        pause_s = self._scheduler.last_swap_s
        message = f"updated, nothing was computed for {pause_s:.6f} s"
        answer = {"success": True, "message": message, "num_paused_requests": paused, "pause_seconds": pause_s}
        return web.json_response(answer)

    async def _install(self, folder: Path, weight_version: str | None) -> None:
        staged = await asyncio.to_thread(self._model.stage, folder)
        await carried_out(lambda: self._scheduler.install(staged, weight_version=weight_version))

    async def _write_sparse(self, path: Path, weight_version: str) -> None:
        update = await asyncio.to_thread(lambda: self._model.place(read_sparse_update(path)))
        await carried_out(lambda: self._scheduler.write(update, weight_version=weight_version))

    async def update_version(self, request: web.Request) -> web.Response:
        body = await parsed(request, UpdateVersionRequest)
        if body.abort_all_requests:
            await carried_out(lambda: self._scheduler.abort(None))
        await carried_out(lambda: self._scheduler.rename_weights(body.new_version))
        return web.json_response({"success": True, "message": "renamed", "new_version": body.new_version})

    async def weights_checker(self, request: web.Request) -> web.Response:
        await parsed(request, WeightsCheckerRequest)
        checksums: list[str] = []
        await carried_out(lambda: self._scheduler.on_model(lambda model: checksums.append(model.checksum())))
        return web.json_response({"success": True, "message": "", "per_engine_checksum": checksums[0]})
