"""`trimtab ui --kube` on a real API server, with the rights that the chart gives it and no more."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import ClientSession, ClientTimeout

from tests.support.api.manifests import job
from tests.support.chart.rendering import NAMESPACE, name_of, objects, of_kind
from trimtab.cli.ui.cluster import ClusterRuns
from trimtab.cli.ui.guard import Guard
from trimtab.cli.ui.server import Server, serving
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import free_ports
from trimtab.kube.access import ClusterAccess, load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Forbidden
from trimtab.kube.resources import PODS, RLJOBS, SECRETS

ACCOUNT = f"system:serviceaccount:{NAMESPACE}:trimtab-ui"
STATUS: dict[str, Any] = {
    "step": 3,
    "reward": 0.25,
    "policies": [{"name": "solver", "step": 3, "reward": 0.25, "waitingFraction": 0.6}],
    "pools": [{"name": "local", "readyReplicas": 1, "desiredReplicas": 2}],
    "autoscaling": {
        "mode": "Auto",
        "current": 1,
        "recommended": 4,
        "bounded": 2,
        "reason": "TrainerStarving",
        "message": "the trainer waits",
        "lastScaleTime": "2026-11-19T04:10:00Z",
    },
}


@pytest.fixture
def access(control_plane: ControlPlane, namespace: str) -> ClusterAccess:
    """Of the page's service account."""
    rendered = objects({"namespaces": [namespace], "ui": {"enabled": True}})
    own = [entry for entry in of_kind(rendered, "Role", "RoleBinding") if name_of(entry) == "trimtab-ui"]
    assert len(own) == 2
    control_plane.kubectl("create", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": own}))
    return load_access(control_plane.kubeconfig(user=ACCOUNT, groups=("system:serviceaccounts",)))


async def _events(address: str) -> AsyncIterator[tuple[str, Any]]:
    async with ClientSession(timeout=ClientTimeout(total=120)) as session, session.get(address) as answer:
        name = ""
        async for line in answer.content:
            if line.startswith(b"event: "):
                name = line[7:].strip().decode()
            elif line.startswith(b"data: "):
                yield name, json.loads(line[6:])


@pytest.mark.slow
async def test_a_job_of_the_cluster_is_on_the_page_as_its_status_changes(
    control_plane: ControlPlane, namespace: str, access: ClusterAccess
) -> None:
    (port,) = free_ports(1)
    server = Server([ClusterRuns(access, namespace=namespace)], Guard(port=port, token=None), tokenizer=None)
    address = f"http://127.0.0.1:{port}/api/stream"
    async with (
        KubeClient(load_access(control_plane.kubeconfig())) as admin,
        serving(server, host="127.0.0.1", port=port),
    ):
        await admin.create(RLJOBS, job("math"), namespace=namespace)
        await admin.patch(RLJOBS, "math", {"status": STATUS}, namespace=namespace, subresource="status")
        labels = {"rl.trimtab.dev/job": "math", "rl.trimtab.dev/role": "rollout"}
        container = {"name": "worker", "image": "none"}
        pod = {"metadata": {"name": "math-local-rollout-0", "labels": labels}, "spec": {"containers": [container]}}
        await admin.create(PODS, pod, namespace=namespace)

        async for name, said in _events(address):
            if name == "runs" and said["runs"] and said["runs"][0].get("step") == 3:
                break
        (run,) = said["runs"]
        assert (run["job"], run["where"], run["reward"], run["wanted"]) == ("math", namespace, 0.25, 2)

        told: list[dict[str, Any]] = []
        now: dict[str, Any] = {}
        changed = False
        async for name, said in _events(f"{address}?run={run['id']}::0"):
            if name == "told":
                told += said["told"]
            elif name == "now":
                now = said["now"]
            if now.get("pods") and told and not changed:
                later = STATUS | {"step": 4, "policies": [{"name": "solver", "step": 4, "reward": 0.5}]}
                await admin.patch(RLJOBS, "math", {"status": later}, namespace=namespace, subresource="status")
                changed = True
            rewards = [one["values"]["solver/reward"] for one in told if "solver/reward" in one.get("values", {})]
            if rewards == [0.25, 0.5]:
                break
        assert [pod["id"] for pod in now["pods"]] == ["math-local-rollout-0"]
        assert now["decision"]["reason"] == "TrainerStarving"
        async for name, said in _events(f"{address}?run={run['id']}::0"):
            if name == "now":
                assert said["now"]["pods"] == now["pods"], "another page sees them too"
                break
        (decided,) = [one["event"] for one in told if one.get("event", {}).get("what") == "rescaled"]
        assert (decided["before"], decided["after"], decided["message"]) == (1, 2, "the trainer waits")


async def test_the_pages_account_can_change_nothing_and_read_no_secret(namespace: str, access: ClusterAccess) -> None:
    async with KubeClient(access) as client:
        await client.list(RLJOBS, namespace=namespace)
        for attempt in (
            client.create(RLJOBS, job("math"), namespace=namespace),
            client.list(SECRETS, namespace=namespace),
            client.list(RLJOBS),
        ):
            with pytest.raises(Forbidden):
                await attempt


async def test_a_cluster_that_refuses_is_said_to(control_plane: ControlPlane, namespace: str) -> None:
    access = load_access(control_plane.kubeconfig(user="stranger", groups=()))
    (port,) = free_ports(1)
    server = Server([ClusterRuns(access, namespace=namespace)], Guard(port=port, token=None), tokenizer=None)
    async with asyncio.timeout(120), serving(server, host="127.0.0.1", port=port):
        async for name, said in _events(f"http://127.0.0.1:{port}/api/stream"):
            if name == "runs" and said["trouble"]:
                break
    assert "stranger" in said["trouble"]
    assert server.trouble == said["trouble"]
