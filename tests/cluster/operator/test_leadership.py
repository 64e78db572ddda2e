"""The lease on a real API server: one holder, taken over when it is silent, given up when it is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import LEASES
from trimtab.operator.leadership import Leadership, LeadershipLost

_PATIENCE_S = 240.0


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    async with KubeClient(load_access(control_plane.kubeconfig())) as client:
        yield client


def _candidate(client: KubeClient, namespace: str, identity: str, *, duration_s: int = 8) -> Leadership:
    return Leadership(
        client,
        namespace=namespace,
        name="lease",
        identity=identity,
        duration_s=duration_s,
        wall=time.time,
        monotonic=time.monotonic,
    )


async def _acquired(candidate: Leadership) -> None:
    async with asyncio.timeout(_PATIENCE_S):
        await candidate.acquire()


@pytest.mark.slow
async def test_a_silent_holder_is_replaced_and_a_living_one_is_not(client: KubeClient, namespace: str) -> None:
    one, two = _candidate(client, namespace, "one"), _candidate(client, namespace, "two")
    await _acquired(one)
    holding, waiting = asyncio.create_task(one.hold()), asyncio.create_task(_acquired(two))
    done, _ = await asyncio.wait({waiting}, timeout=10.0)
    assert not done, "the lease was taken from a living holder"
    holding.cancel()
    await waiting
    lease = await client.get(LEASES, "lease", namespace=namespace)
    assert lease["spec"]["holderIdentity"] == "two"
    assert lease["spec"]["leaseTransitions"] == 2


async def test_a_released_lease_is_taken_at_once(client: KubeClient, namespace: str) -> None:
    one, two = (_candidate(client, namespace, name, duration_s=3600) for name in ("one", "two"))
    await _acquired(one)
    await one.release()
    await _acquired(two)


async def test_a_holder_that_finds_another_gives_up(client: KubeClient, namespace: str) -> None:
    one = _candidate(client, namespace, "one")
    await _acquired(one)
    lease = await client.get(LEASES, "lease", namespace=namespace)
    lease["spec"]["holderIdentity"] = "two"
    await client.replace(LEASES, "lease", lease, namespace=namespace)
    with pytest.raises(LeadershipLost, match="another operator"):
        async with asyncio.timeout(_PATIENCE_S):
            await one.hold()
