"""Writes a pod's status to the API server when it has changed, and only then."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import structlog

from trimtab.devcluster.container.restarts import BACKOFF
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, KubeError, NotFound
from trimtab.kube.resources import PODS, Object

_log = structlog.get_logger(__name__)
_FINAL_WRITE_S = 10.0


class StatusWriter:
    """`compute` is given the pod with the newest status that is known, so that conditions keep their times."""

    def __init__(self, client: KubeClient, pod: Object, *, compute: Callable[[Object], dict[str, Any]]) -> None:
        self._client = client
        self._pod = pod
        self._compute = compute
        self._dirty = asyncio.Event()
        self._dirty.set()
        self._clean = asyncio.Event()
        self._last: dict[str, Any] | None = None
        self._closed = False

    def touch(self) -> None:
        self._clean.clear()
        self._dirty.set()

    def close(self) -> None:
        """Nothing more is to be said: what was written last stands."""
        self._closed = True
        self._clean.set()

    def observed(self, pod: Object) -> None:
        # What was watched may be older than the answer to our own last write.
        if int(pod["metadata"]["resourceVersion"]) >= int(self._pod["metadata"]["resourceVersion"]):
            self._pod = pod
            # A condition of another controller's may open a readiness gate.
            self.touch()

    async def written(self) -> None:
        """Returns when there is nothing left to write, or when that takes too long."""
        try:
            async with asyncio.timeout(_FINAL_WRITE_S):
                await self._clean.wait()
        except TimeoutError:
            _log.warning("status_not_written", pod=self._pod["metadata"]["name"])

    async def run(self) -> None:
        attempt = 0
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            try:
                await self._write()
                attempt = 0
            except (NotFound, Conflict):
                self._clean.set()  # the pod is gone, or another of its name is there
                return
            except KubeError as error:
                _log.warning("status_not_written", pod=self._pod["metadata"]["name"], error=str(error))
                self._dirty.set()
                await asyncio.sleep(BACKOFF.delay_s(attempt))
                attempt += 1
            if not self._dirty.is_set():
                self._clean.set()

    async def _write(self) -> None:
        status = self._compute(self._pod)
        if self._closed or status == self._last:
            return
        metadata = self._pod["metadata"]
        # The uid makes it a Conflict where another pod has taken the name; the strategic merge leaves the conditions
        # of others alone.
        self._pod = await self._client.patch(
            PODS,
            metadata["name"],
            {"metadata": {"uid": metadata["uid"]}, "status": status},
            namespace=metadata["namespace"],
            subresource="status",
            strategic=True,
        )
        self._last = status
