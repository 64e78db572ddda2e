"""Probes and hooks: one attempt is an HTTP request, a connection, or a command in the container's view; enough equal
results in a row change what is thought of the container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from trimtab.devcluster.pod.ports import probed_port
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.resources import Object

_SUCCESS = range(200, 400)


@dataclass(frozen=True, kw_only=True)
class Prober:
    """`execute` runs a command as the container would and returns its exit code and output."""

    session: aiohttp.ClientSession
    pod: Object
    ports: Mapping[str, int]

    async def attempt(
        self,
        action: Mapping[str, Any],
        *,
        timeout_s: float,
        execute: Callable[[Sequence[str]], Awaitable[tuple[int, str]]],
    ) -> str | None:
        """What is wrong; None if nothing is."""
        try:
            async with asyncio.timeout(timeout_s):
                if "exec" in action:
                    code, output = await execute(action["exec"]["command"])
                    return None if code == 0 else f"command exited with {code}: {output[-512:].strip()}"
                if "httpGet" in action:
                    return await self._http(action["httpGet"])
                if "tcpSocket" in action:
                    return await self._tcp(action["tcpSocket"])
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return "the probe has no action that is known on this node"

    async def _http(self, action: Mapping[str, Any]) -> str | None:
        port = probed_port(action["port"], pod=self.pod, ports=self.ports)
        scheme = str(action.get("scheme") or "HTTP").lower()
        path = "/" + str(action.get("path") or "").removeprefix("/")
        url = f"{scheme}://{action.get('host') or LOOPBACK}:{port}{path}"
        headers = {header["name"]: header["value"] for header in action.get("httpHeaders") or ()}
        # As a kubelet's probes: certificates are not checked, and a redirection is a success.
        async with self.session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
            return None if response.status in _SUCCESS else f"HTTP probe failed with statuscode: {response.status}"

    async def _tcp(self, action: Mapping[str, Any]) -> str | None:
        port = probed_port(action["port"], pod=self.pod, ports=self.ports)
        _, writer = await asyncio.open_connection(action.get("host") or LOOPBACK, port)
        writer.close()
        return None


@dataclass(frozen=True, kw_only=True)
class ProbeTiming:
    initial_delay_s: float
    period_s: float
    timeout_s: float
    success_threshold: int
    failure_threshold: int

    @classmethod
    def of(cls, probe: Mapping[str, Any]) -> ProbeTiming:
        return cls(
            initial_delay_s=float(probe.get("initialDelaySeconds") or 0),
            period_s=float(probe.get("periodSeconds") or 10),
            timeout_s=float(probe.get("timeoutSeconds") or 1),
            success_threshold=int(probe.get("successThreshold") or 1),
            failure_threshold=int(probe.get("failureThreshold") or 3),
        )


class ProbeCounter:
    """`verdict` is what the probe says about the container; it changes only after a row of equal results."""

    def __init__(self, timing: ProbeTiming, *, verdict: bool) -> None:
        self._timing = timing
        self._row = 0
        self._last: bool | None = None
        self.verdict = verdict

    def count(self, succeeded: bool) -> bool:
        """Whether this result makes the row long enough, first time or not."""
        self._row = self._row + 1 if succeeded is self._last else 1
        self._last = succeeded
        needed = self._timing.success_threshold if succeeded else self._timing.failure_threshold
        if self._row < needed:
            return False
        self.verdict = succeeded
        return True
