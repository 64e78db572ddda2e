"""A reconcile of a pool whose cluster hangs holds no other up, not even with a single worker."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any, cast

from tests.support.polling import eventually
from trimtab.fabric.metrics import Metrics
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Resource
from trimtab.operator.metrics import OperatorMetrics
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster, Result, WorkKey
from trimtab.operator.reconcile.controller import Controller
from trimtab.operator.remote.links import Links
from trimtab.operator.remote.pool import RemotePoolReconciler
from trimtab.operator.settings import RemoteSettings

NOBODY = cast(KubeClient, None)  # nothing is asked of a server


def _view(resource: Resource) -> ObjectCache:
    return ObjectCache(resource, {None: Reflector(NOBODY, resource)}, index=lambda item: (), clock=time.monotonic)


def _pool(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": name, "uid": name, "resourceVersion": "1"}
    return {"metadata": metadata, "spec": {"jobRef": {"name": "job"}, **spec}}


def _cluster(metrics: OperatorMetrics) -> Cluster:
    pools = _view(ROLLOUT_POOLS)
    pools.note(_pool("far", cluster={"kubeconfigSecret": {"name": "far", "key": "kubeconfig"}}))
    pools.note(_pool("home"))
    links = Links(NOBODY, settings=RemoteSettings(), installation="op", metrics=metrics)
    parts = SimpleNamespace(
        jobs=_view(RLJOBS),
        pools=pools,
        trainers=_view(TRAINERS),
        pods=_view(PODS),
        remote=RemotePoolReconciler(links),
        watches=SimpleNamespace(count=0),
        settings=SimpleNamespace(workers=1, resync_s=600.0),
        clock=time.time,
        cache_of=lambda kind: pools,
    )
    return cast(Cluster, parts)


async def test_a_cluster_that_hangs_holds_no_worker() -> None:
    reconciled: list[str] = []
    hanging = asyncio.Event()

    async def reconcile(cluster: Cluster, key: WorkKey) -> Result:
        if key.name == "far":
            hanging.set()
            await asyncio.Event().wait()
        reconciled.append(key.name)
        return Result()

    metrics = OperatorMetrics(Metrics())
    controller = Controller(_cluster(metrics), metrics, reconcilers={"RolloutPool": reconcile})
    controller.wake("RolloutPool", Key("team", "far"))
    controller.wake("RolloutPool", Key("team", "home"))
    running = asyncio.create_task(controller.run())
    try:
        await eventually(lambda: reconciled == ["home"], timeout_s=10.0)
        assert hanging.is_set()
        # Nor is it reconciled twice at once.
        controller.wake("RolloutPool", Key("team", "far"))
        controller.wake("RolloutPool", Key("team", "home"))
        await eventually(lambda: reconciled == ["home", "home"], timeout_s=10.0)
        assert controller.queue.depth == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
