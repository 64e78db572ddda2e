"""Keeps an SGLang server running: waits until it is ready, notices that it died or hangs, starts it again.

The HTTP server may outlive the scheduler behind it and goes on to answer /health. So once it is ready it is asked for
/server_info, which only the scheduler can answer, and which it also answers in a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any, Self, TypeVar

import aiohttp
import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.parent_death import die_with
from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.restarts import RestartPolicy
from trimtab.rollout.engines.sglang.command import ServerCommand

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_RESTARTS = RestartPolicy(backoff=FullJitter(base_s=2.0, cap_s=60.0), stable_s=60.0)
_EXIT_BAD_ARGUMENTS = 2
"""Of Python's argument parser."""


class ServerProcess:
    """One incarnation of SGLang: server, schedulers and detokenizer, in a process group that ends as a whole. Its
    output goes where ours goes.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, command: ServerCommand) -> Self:
        process = await asyncio.create_subprocess_exec(
            *command.arguments,
            env=dict(command.environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stdout.fileno(),
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
            # However we die. SGLang arranges the same for its children.
            preexec_fn=partial(die_with, os.getpid()),
        )
        return cls(process)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def exit_code(self, *, wait_s: float) -> int | None:
        """None if it still runs after so long."""
        try:
            async with asyncio.timeout(wait_s):
                return await self._process.wait()
        except TimeoutError:
            return None

    async def stop(self, *, grace_s: float) -> None:
        """SIGTERM to the server, which tells its children; SIGKILL to all that is left after the grace period."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        await self.exit_code(wait_s=grace_s)
        # Schedulers outlive a server that was killed or crashed, and keep the memory and the GPU.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        await self._process.wait()


class ServerNotReady(RuntimeError):
    """It did not become ready in the time the manifest gives it."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long to wait for what, in seconds."""

    startup_s: float
    """From a start, or from the death of a server that was ready, until one is."""
    silence_s: float = 120.0
    """Loading a large model's weights keeps the scheduler from answering for a while; this is longer."""
    readiness_poll_s: float = 0.5
    liveness_poll_s: float = 5.0
    answer_s: float = 10.0
    grace_s: float = 15.0
    restarts: RestartPolicy = _RESTARTS
    """Of servers that were ready; none is given up before `startup_s` is over."""


class ServerProbe:
    """Asks a server over HTTP."""

    def __init__(self, session: aiohttp.ClientSession, *, answer_s: float) -> None:
        self._session = session
        self._answer_s = answer_s

    @classmethod
    def at(cls, url: str, *, answer_s: float) -> Self:
        return cls(aiohttp.ClientSession(base_url=url), answer_s=answer_s)

    async def close(self) -> None:
        await self._session.close()

    async def ready(self) -> bool:
        return await self._answers("/health")

    async def alive(self) -> bool:
        return await self._answers("/server_info")

    async def _answers(self, path: str) -> bool:
        try:
            async with asyncio.timeout(self._answer_s), self._session.get(path) as response:
                await response.read()
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False


class Supervisor:
    """Runs one server at a time until it is told to stop."""

    def __init__(self, command: ServerCommand, probe: ServerProbe, *, patience: Patience) -> None:
        self._command = command
        self._probe = probe
        self._patience = patience
        self._now = asyncio.get_running_loop().time

    async def run(self, stopping: asyncio.Event) -> None:
        """Raises ServerNotReady, and JobMisconfigured when SGLang does not take its arguments."""
        patience = self._patience
        crashes = 0
        ready_by = self._now() + patience.startup_s
        while not stopping.is_set():
            server = await ServerProcess.start(self._command)
            try:
                served_s = await _unless(stopping, self._serve(server, ready_by=ready_by))
            finally:
                await server.stop(grace_s=patience.grace_s)
            if served_s is None:
                continue
            if served_s > 0:
                ready_by = self._now() + patience.startup_s
            now = self._now()
            again = patience.restarts.again(crashes, lived_s=served_s, now=now)
            crashes, delay = again.crashes, again.wait_s(now)
            _log.warning("sglang_restarts", served_s=round(served_s, 1), delay_s=round(delay, 2))
            await _unless(stopping, asyncio.sleep(delay))

    async def _serve(self, server: ServerProcess, *, ready_by: float) -> float:
        """Until it ends or hangs; for how long it was ready."""
        if not await self._become_ready(server, ready_by=ready_by):
            return 0.0
        ready_at = heard_at = self._now()
        _log.info("sglang_ready", pid=server.pid)
        while (code := await server.exit_code(wait_s=self._patience.liveness_poll_s)) is None:
            if await self._probe.alive():
                heard_at = self._now()
            elif self._now() - heard_at > self._patience.silence_s:
                _log.error("sglang_silent", silence_s=self._patience.silence_s)
                return self._now() - ready_at
        _log.error("sglang_ended", exit_code=code)
        return self._now() - ready_at

    async def _become_ready(self, server: ServerProcess, *, ready_by: float) -> bool:
        """False when it ended instead, and there is time for another."""
        while (code := await server.exit_code(wait_s=self._patience.readiness_poll_s)) is None:
            if await self._probe.ready():
                return True
            self._check_time(ready_by)
        if code == _EXIT_BAD_ARGUMENTS:
            raise JobMisconfigured("pools[].engine.args: SGLang refused an argument; its own words are above")
        _log.error("sglang_ended_before_ready", exit_code=code)
        self._check_time(ready_by)
        return False

    def _check_time(self, ready_by: float) -> None:
        if self._now() > ready_by:
            raise ServerNotReady(
                f"SGLang was not ready within {self._patience.startup_s:.0f} s; its output says how far it came, and "
                "pools[].engine.startupTimeoutSeconds gives it more"
            )


async def _unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """What the work returns, or None if it is to stop first."""
    working, stop = asyncio.create_task(work), asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({working, stop}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stop):
            task.cancel()
        await asyncio.gather(working, stop, return_exceptions=True)
