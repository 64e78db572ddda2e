"""What wakes an object that has just failed: anything but the echo of our own status; and what it costs others."""

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
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object, Resource
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.controller import Controller, Reconcile

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
        self.trainers, self.pools = _Watched(TRAINERS), _Watched(ROLLOUT_POOLS)
        watched = {"Trainer": self.trainers, "RolloutPool": self.pools}
        self.reconciles = 0
        metrics = OperatorMetrics(Metrics())
        caches = {
            resource.kind: ObjectCache(
                resource,
                {None: watched[resource.kind] if resource.kind in watched else _Watched(resource)},
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
        self.reconcilers: dict[str, Reconcile] = {"Trainer": self._fail, "RLJob": self._rest}
        self.told: list[str] = []
        self.controller = Controller(
            cast(Cluster, parts), metrics, reconcilers=self.reconcilers, say_faulted=self._say_faulted
        )

    async def _fail(self, cluster: Cluster, key: WorkKey) -> Result:
        self.reconciles += 1
        raise Unreachable("no answer")

    async def _say_faulted(self, cluster: Cluster, item: Object, message: str, *, now: float) -> None:
        self.told.append(message)

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


async def test_an_object_that_a_listener_chokes_on_costs_the_others_nothing() -> None:
    """Whatever is in it: the watch goes on, and the next object is taken up."""
    story = _Story()
    heard: list[Key] = []

    def choke(key: Key, before: Object | None, after: Object | None) -> None:
        raise TypeError("unhashable type: 'list'")

    story.trainers.listen(choke)
    story.trainers.listen(lambda key, before, after: heard.append(key))
    story.trainers.says(_trainer(1))
    assert heard == [KEY]
    story.trainers.says({**_trainer(2), "spec": ["no", "mapping"]})
    story.trainers.says(_trainer(3))
    assert heard == [KEY] * 3


async def test_a_pool_whose_annotation_is_anything_ends_no_worker() -> None:
    story = _Story()
    reconciled: list[WorkKey] = []

    async def reconcile(cluster: Cluster, key: WorkKey) -> Result:
        reconciled.append(key)
        return Result()

    story.reconcilers["RolloutPool"] = reconcile
    bad = _trainer(1)
    bad["metadata"]["annotations"] = {"rl.trimtab.dev/placement": '{"home":[],"secret":[],"key":[],"namespace":[]}'}
    bad["spec"]["cluster"] = {"kubeconfigSecret": {"name": [], "key": []}}
    running = asyncio.create_task(story.controller.run())
    try:
        story.pools.says(bad)
        await eventually(lambda: len(reconciled) == 1, timeout_s=10.0)
        story.pools.says(_trainer(2))
        await eventually(lambda: len(reconciled) == 2, timeout_s=10.0)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_fault_is_told_in_the_object_once_and_backs_off() -> None:
    story = _Story()

    async def fault(cluster: Cluster, key: WorkKey) -> Result:
        story.reconciles += 1
        raise KeyError("secret-text")

    story.reconcilers["Trainer"] = fault
    running = asyncio.create_task(story.controller.run())
    try:
        story.trainers.says(_trainer(1))
        await story.backs_off()
        assert not running.done()
        assert len(story.told) == story.reconciles
        assert "KeyError" in story.told[0]
        assert "secret-text" not in story.told[0]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
