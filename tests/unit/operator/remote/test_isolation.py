"""A look at a pool whose cluster hangs keeps no other look waiting, not even with a single worker."""

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
from trimtab.operator.reconcile.cache import FreshView
from trimtab.operator.reconcile.cluster import Cluster, Turn, WorkKey
from trimtab.operator.reconcile.controller import Controller
from trimtab.operator.remote.links import Links
from trimtab.operator.settings import RemoteSettings

NOBODY = cast(KubeClient, None)  # nothing is asked of a server


def _view(resource: Resource) -> FreshView:
    return FreshView(resource, {None: Reflector(NOBODY, resource)}, index=lambda item: (), clock=time.monotonic)


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
        links=links,
        reports=SimpleNamespace(count=0),
        settings=SimpleNamespace(workers=1, resync_s=600.0),
        clock=time.time,
        view_of=lambda kind: pools,
    )
    return cast(Cluster, parts)


async def test_a_cluster_that_hangs_holds_no_worker() -> None:
    looked: list[str] = []
    hanging = asyncio.Event()

    async def look(cluster: Cluster, key: WorkKey) -> Turn:
        if key.name == "far":
            hanging.set()
            await asyncio.Event().wait()
        looked.append(key.name)
        return Turn()

    metrics = OperatorMetrics(Metrics())
    controller = Controller(_cluster(metrics), metrics, looks={"RolloutPool": look})
    controller.wake("RolloutPool", Key("team", "far"))
    controller.wake("RolloutPool", Key("team", "home"))
    running = asyncio.create_task(controller.run())
    try:
        await eventually(lambda: looked == ["home"], timeout_s=10.0)
        assert hanging.is_set()
        # Nor is it looked at twice at once.
        controller.wake("RolloutPool", Key("team", "far"))
        controller.wake("RolloutPool", Key("team", "home"))
        await eventually(lambda: looked == ["home", "home"], timeout_s=10.0)
        assert controller.queue.depth == 0
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
