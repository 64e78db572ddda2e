"""Serves the shipped world over HTTP: `python -m trimtab.rollout.worlds.server --port 8000`.

It speaks what AgentGym's server for AlfWorld speaks, and what AgentBench's controller does, so that either client can
be tried without their data.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.rollout.workflows.errors import PromptUnusable
from trimtab.rollout.worlds.house import HouseWorld

TASK = "house"
_MAX_EPISODES = 4096
_FORGOTTEN_AFTER_S = 3600.0
_MAX_BODY_BYTES = 1 << 20


@dataclass
class _Played:
    world: HouseWorld
    touched: float
    reward: float = 0.0
    steps: int = 0
    begun: bool = False
    done: bool = False
    history: list[dict[str, str]] = field(default_factory=list)


class HouseServer:
    """The state is in memory. An episode that nobody touches for an hour is forgotten."""

    def __init__(
        self,
        world: Mapping[str, Any],
        *,
        houses: int = 1000,
        max_steps: int = 50,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`world` are the arguments of HouseWorld. `max_steps` is for AgentBench's protocol, whose server counts."""
        HouseWorld(**world)
        self._world = world
        self._houses = houses
        self._max_steps = max_steps
        self._clock = clock
        self._numbers = itertools.count()
        self._episodes: dict[int, _Played] = {}

    def app(self) -> web.Application:
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for path, method in (("create", self._create), ("reset", self._reset), ("step", self._step)):
            app.router.add_post(f"/{path}", method)
        app.router.add_post("/close", self._close)
        app.router.add_get("/api/get_indices", self._indices)
        app.router.add_post("/api/start_sample", self._start_sample)
        app.router.add_post("/api/interact", self._interact)
        app.router.add_post("/api/cancel", self._cancel)
        return app

    async def _create(self, request: web.Request) -> web.Response:
        return web.json_response({"id": self._new()})

    async def _reset(self, request: web.Request) -> web.Response:
        body = await _body(request)
        played = self._episodes.get(body.get("id", -1))
        if played is None:
            return web.json_response({"error": f"The id {body.get('id')} is not valid."})
        try:
            text = await _away(lambda: played.world.reset({"house": body.get("game")}))
        except PromptUnusable as error:
            return web.json_response({"error": str(error)})
        played.begun, played.done, played.touched = True, False, self._clock()
        return web.json_response(
            {"id": body["id"], "observation": text, "available_actions": played.world.available_actions}
        )

    async def _step(self, request: web.Request) -> web.Response:
        body = await _body(request)
        played = self._episodes.get(body.get("id", -1))
        if played is None or not played.begun:
            return web.json_response({"error": f"The id {body.get('id')} is not valid."})
        if played.done:
            return web.json_response({"error": f"The task with environment {body['id']} has finished."})
        played.touched = self._clock()
        text, reward, played.done = await _away(lambda: played.world.step(str(body.get("action", ""))))
        actions = [] if played.done else played.world.available_actions
        return web.json_response(
            {"observation": text, "reward": reward, "available_actions": actions, "done": played.done}
        )

    async def _close(self, request: web.Request) -> web.Response:
        closed = self._episodes.pop((await _body(request)).get("id", -1), None) is not None
        return web.json_response({"closed": closed})

    async def _indices(self, request: web.Request) -> web.Response:
        return web.json_response(list(range(self._houses)))

    async def _start_sample(self, request: web.Request) -> web.Response:
        body = await _body(request)
        if body.get("name") != TASK:
            raise web.HTTPNotAcceptable(text="Error: Task does not exist")
        if body.get("index") not in range(self._houses):
            raise web.HTTPBadRequest(text="Error: Index out of bounds")
        number = self._new()
        played = self._episodes[number]
        text = await _away(lambda: played.world.reset({"house": body["index"]}))
        played.history = [{"role": "user", "content": text}]
        return _sample(number, played, status="running")

    async def _interact(self, request: web.Request) -> web.Response:
        body = await _body(request)
        number = body.get("session_id", -1)
        played = self._episodes.get(number)
        if played is None:
            raise web.HTTPBadRequest(text="Error: Session does not exist")
        said = str((body.get("agent_response") or {}).get("content", ""))
        played.history.append({"role": "agent", "content": said})
        text, reward, done = await _away(lambda: played.world.step(said))
        played.reward, played.steps, played.touched = played.reward + reward, played.steps + 1, self._clock()
        if done or played.steps >= self._max_steps:
            del self._episodes[number]
            return _sample(number, played, status="completed" if done else "task limit reached")
        played.history.append({"role": "user", "content": text})
        return _sample(number, played, status="running")

    async def _cancel(self, request: web.Request) -> web.Response:
        number = (await _body(request)).get("session_id", -1)
        if self._episodes.pop(number, None) is None:
            raise web.HTTPBadRequest(text="Error: Session does not exist")
        return web.json_response({"session_id": number})

    def _new(self) -> int:
        now = self._clock()
        for number in [
            number for number, played in self._episodes.items() if now - played.touched > _FORGOTTEN_AFTER_S
        ]:
            del self._episodes[number]
        if len(self._episodes) >= _MAX_EPISODES:
            raise web.HTTPServiceUnavailable(text=f"{_MAX_EPISODES} episodes are played: close some")
        number = next(self._numbers)
        self._episodes[number] = _Played(HouseWorld(**self._world), touched=now)
        return number


def _sample(number: int, played: _Played, *, status: str) -> web.Response:
    result = None if status == "running" else {"result": played.reward}
    output = {"status": status, "result": result, "history": played.history}
    return web.json_response({"session_id": number, "output": output})


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except ValueError as error:
        raise web.HTTPBadRequest(text=f"no JSON: {error}") from None
    if not isinstance(body, dict):
        raise web.HTTPBadRequest(text=f"{body!r:.100} is no object")
    return body


async def _away(work: Callable[[], Any]) -> Any:
    """Beside the event loop: a step is planned."""
    return await in_daemon_thread(work, name="house")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trimtab.rollout.worlds.server", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--houses", type=int, default=1000, help="indices of AgentBench's protocol")
    parser.add_argument("--reward", choices=["goal", "progress"], default="progress")
    for name, default in (("rooms", 6), ("containers", 4), ("locks", 2), ("goals", 2), ("others", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--least-steps", type=int, default=10)
    given = vars(parser.parse_args())
    host, port, houses = given.pop("host"), given.pop("port"), given.pop("houses")
    web.run_app(HouseServer(given, houses=houses).app(), host=host, port=port)


if __name__ == "__main__":
    main()
