"""A garbage collector for a control plane that has no node: objects go with their owners, pods are never run."""

from __future__ import annotations

import asyncio
import threading
from typing import Self

from trimtab.devcluster.node.garbage_collector import COLLECTED, GarbageCollector
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector


class Collector:
    def __init__(self, access: ClusterAccess) -> None:
        self._access = access
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join(10.0)

    def _work(self) -> None:
        self._task = self._loop.create_task(self._collect())
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            return
        finally:
            # aiohttp's TLS connections close in the next turns of the loop.
            self._loop.run_until_complete(asyncio.sleep(0.1))
            self._loop.close()

    def _stop(self) -> None:
        assert self._task is not None
        self._task.cancel()

    async def _collect(self) -> None:
        async with KubeClient(self._access) as client, asyncio.TaskGroup() as group:
            stores = [Reflector(client, resource) for resource in COLLECTED]
            collector = GarbageCollector(client, stores)
            for store in stores:
                group.create_task(store.run())
            group.create_task(collector.run())
