"""What wakes an object that has just failed: anything but the echo of our own status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.polling import eventually
from trimtab.fabric.metrics import Metrics
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Unreachable
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Resource
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.controller import Controller

KEY = Key("team", "job-solver")


class _Watched(Reflector):
    """A Reflector whose watch is the test."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(cast(KubeClient, None), resource)

    def says(self, item: dict[str, Any]) -> None:
        self._put(KEY, item)


def _trainer(version: int, *, step: int = 0, generation: int = 1) -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": KEY.namespace,
            "name": KEY.name,
            "uid": "u",
            "resourceVersion": str(version),
            "generation": generation,
        },
        "spec": {"jobRef": {"name": "job"}},
        "status": {"step": step},
    }


class _Story:
    def __init__(self) -> None:
        self.trainers = _Watched(TRAINERS)
        self.reconciles = 0
        metrics = OperatorMetrics(Metrics())
        caches = {
            resource.kind: ObjectCache(
                resource,
                {None: self.trainers if resource is TRAINERS else _Watched(resource)},
                index=lambda item: (),
                clock=time.monotonic,
            )
            for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS, PODS)
        }
        parts = SimpleNamespace(
            jobs=caches["RLJob"],
            pools=caches["RolloutPool"],
            trainers=caches["Trainer"],
            pods=caches["Pod"],
            remote=SimpleNamespace(listen=lambda pools, **_: None),
            watches=SimpleNamespace(count=0),
            settings=SimpleNamespace(workers=1, resync_s=600.0),
            clock=time.time,
            cache_of=lambda kind: caches[kind],
        )
        reconcilers = {"Trainer": self._fail, "RLJob": self._rest}
        self.controller = Controller(cast(Cluster, parts), metrics, reconcilers=reconcilers)

    async def _fail(self, cluster: Cluster, key: WorkKey) -> Result:
        self.reconciles += 1
        raise Unreachable("no answer")

    async def _rest(self, cluster: Cluster, key: WorkKey) -> Result:
        return Result()

    async def backs_off(self) -> None:
        """Until a timer of seconds is all that is left."""
        await eventually(lambda: self.reconciles >= 6, timeout_s=30.0)
        await eventually(
            lambda: self.controller.queue.depth == 0 and self.controller.queue.busy_since is None, timeout_s=10.0
        )


@asynccontextmanager
async def _failing() -> AsyncIterator[_Story]:
    story = _Story()
    running = asyncio.create_task(story.controller.run())
    try:
        story.trainers.says(_trainer(1))
        await story.backs_off()
        yield story
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_the_echo_of_a_status_does_not_cut_a_backoff_short() -> None:
    async with _failing() as story:
        story.trainers.says(_trainer(2, step=7))
        assert WorkKey("Trainer", *KEY) not in story.controller.queue.waiting


@pytest.mark.parametrize("change", [{"generation": 2}, {"step": 3, "generation": 2}])
async def test_a_change_of_the_object_does(change: dict[str, int]) -> None:
    async with _failing() as story:
        story.trainers.says(_trainer(2, **change))
        assert WorkKey("Trainer", *KEY) in story.controller.queue.waiting
