"""Random objects on a real API server, with the real operator: what the server takes fails its own object, the operator
goes on, and the jobs of others are reconciled as fast as ever.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.operator.hostile_writes import KINDS, random_write
from tests.support.operator.scene import Scene, tiny_job
from tests.support.sizes import Sizes
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import ApiError
from trimtab.kube.resources import (
    NAMESPACES,
    RLJOBS,
    ROLLOUT_POOLS,
)

_TENANTS = 5
# Far above what a busy machine makes of a second, and far below what a queue in the order of arrival would take.
_LONGEST_WAIT_S = 10.0


async def _wait_of_the_good_one(client: KubeClient, namespace: str, replicas: int) -> float:
    """From a change of a sound pool until the operator's status says that it has seen it."""
    changed = await client.patch(ROLLOUT_POOLS, "tiny-home", {"spec": {"replicas": replicas}}, namespace=namespace)
    began = time.monotonic()
    async with asyncio.timeout(120):
        while True:
            pool = await client.get(ROLLOUT_POOLS, "tiny-home", namespace=namespace)
            if pool.get("status", {}).get("observedGeneration", 0) >= changed["metadata"]["generation"]:
                return time.monotonic() - began
            await asyncio.sleep(0.02)


@asynccontextmanager
async def _tenants(client: KubeClient) -> AsyncIterator[list[str]]:
    names = [f"tenant-{uuid.uuid4().hex[:8]}" for _ in range(_TENANTS)]
    for name in names:
        await client.create(NAMESPACES, {"metadata": {"name": name}})
    try:
        yield names
    finally:
        for name in names:
            for resource in KINDS.values():
                for item in (await client.list(resource, namespace=name)).items:
                    own = item["metadata"]["name"]
                    unbound = {"metadata": {"finalizers": None}}
                    for call in (
                        client.patch(resource, own, unbound, namespace=name),
                        client.delete(resource, own, namespace=name, grace_s=0),
                    ):
                        try:
                            await call
                        except ApiError:
                            continue


async def test_nothing_that_a_server_takes_stops_the_operator_or_holds_up_others(scene: Scene, sizes: Sizes) -> None:
    rng, results, busy = random.Random(17), [], []
    scene.apply(tiny_job())
    scene.until(scene.pods, lambda pods: len(pods) == 3)
    async with KubeClient(scene.access) as client, _tenants(client) as tenants:
        quiet = [await _wait_of_the_good_one(client, scene.namespace, replicas) for replicas in (2, 1, 2, 1)]
        for number in range(sizes.hostile_writes):
            results.append(await random_write(client, rng, rng.choice(tenants)))
            if number % 20 == 0:
                busy.append(await _wait_of_the_good_one(client, scene.namespace, 1 + number // 20 % 2))
                assert scene.operator.ended() is None, scene.operator.log[-1500:]
        busy.append(await _wait_of_the_good_one(client, scene.namespace, 3))
    assert scene.operator.ended() is None
    assert "listener_faulted" not in scene.operator.log
    assert results.count("refused") < 0.9 * len(results), "the server took next to nothing"
    # A machine that is busy with other things is as slow without a storm.
    assert max(busy) < _LONGEST_WAIT_S + 2 * max(quiet), (sorted(busy)[-5:], quiet)


def test_a_spec_that_is_too_long_is_told_in_the_status(scene: Scene) -> None:
    """A job whose spec is longer than any plan can afford to read."""
    long = tiny_job("long")
    long["spec"]["workflow"]["args"] = {"a": "x" * 300_000}
    scene.kubectl("create", "-f", "-", stdin=json.dumps(long))
    message = scene.says(RLJOBS, "long", "Accepted", "Unreadable", timeout_s=60.0)
    assert "spec: has more than 262144 bytes" in message
