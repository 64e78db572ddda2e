"""The one port a pod listens on, for the kubelet and Prometheus: /metrics, /healthz and /readyz.

Liveness follows the main loop's own beat, not this server's ability to answer: a pod whose loop hangs is restarted.
Readiness is the sum of named checks, each of which says why not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from aiohttp import web

from trimtab.fabric.metrics import Metrics
from trimtab.fabric.redaction import Redactor
from trimtab.fabric.settings import ProbeSettings

_START_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 5.0

Check = Callable[[], str | None]
"""Gives the reason why the pod is not ready, or None."""


class Probes:
    """Serves until stopped. The clock is monotonic seconds; beat() is called by the main loop at every turn."""

    def __init__(
        self, settings: ProbeSettings, metrics: Metrics, redactor: Redactor, *, clock: Callable[[], float]
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._redactor = redactor
        self._clock = clock
        self._last_beat = clock()
        self._checks: dict[str, Check] = {}
        self._runner: web.AppRunner | None = None

    def beat(self) -> None:
        self._last_beat = self._clock()

    def add_check(self, name: str, check: Check) -> None:
        """Readiness depends on this too. Adding a name again replaces its check."""
        self._checks[name] = check

    @property
    def port(self) -> int:
        """The port it really listens on, also when the settings say 0."""
        if self._runner is None or not self._runner.addresses:
            raise RuntimeError("the probes are not being served; call start() first")
        return int(self._runner.addresses[0][1])

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/metrics", self._serve_metrics)
        app.router.add_get("/healthz", self._serve_liveness)
        app.router.add_get("/readyz", self._serve_readiness)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_TIMEOUT_S / 2)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await runner.setup()
                await web.TCPSite(runner, self._settings.host, self._settings.port).start()
        except BaseException:
            await runner.cleanup()
            raise
        self._last_beat = self._clock()
        self._runner = runner

    async def stop(self) -> None:
        if self._runner is not None:
            runner, self._runner = self._runner, None
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await runner.cleanup()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _serve_metrics(self, request: web.Request) -> web.Response:
        body, content_type = self._metrics.exposition(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    async def _serve_liveness(self, _: web.Request) -> web.Response:
        silence = self._clock() - self._last_beat
        if silence > self._settings.max_silence_s:
            bound = self._settings.max_silence_s
            return web.Response(
                status=503, text=f"the main loop is silent for {silence:.1f} s, allowed are {bound:g} s\n"
            )
        return web.Response(text="ok\n")

    async def _serve_readiness(self, _: web.Request) -> web.Response:
        reasons = {name: check() for name, check in self._checks.items()}
        text = "".join(f"{name}: {reason or 'ok'}\n" for name, reason in reasons.items()) or "ok\n"
        return web.Response(status=503 if any(reasons.values()) else 200, text=self._redactor.text(text))
