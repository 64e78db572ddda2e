"""A tiny job on the development node: `kubectl apply` trains a real model with real NATS and object storage."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.operator.administrator import administrators_bus
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.fabric.bus.errors import BusUnauthenticated
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.kube.resources import CONFIG_MAPS, RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS

pytestmark = pytest.mark.slow

_ENDLESS = 1_000_000
_STEP_S = 400.0


def _version(status: dict[str, Any]) -> int:
    return max((policy["version"] for policy in status.get("policies") or ()), default=0)


def test_a_job_trains_scales_survives_and_leaves_nothing(
    scene: Scene, node: DevelopmentNode, servers: dict[str, str], tmp_path: Path
) -> None:
    job = in_a_cluster(make_quickstart(tmp_path, name="learns", max_steps=_ENDLESS))
    job["spec"]["policies"][0]["trainer"]["replicas"] = 2
    scene.apply(job)
    status = scene.until(
        lambda: job_status(scene, "learns"),
        lambda seen: _version(seen) >= 1 or "completionTime" in seen,
        timeout_s=_STEP_S,
    )
    assert "completionTime" not in status, status
    assert status["step"] >= 1
    # Those that work may have missed a probe on a busy machine.
    scene.until(lambda: job_status(scene, "learns")["readyReplicas"], lambda ready: ready == 1)
    scene.says(TRAINERS, "learns-solver", "Ready", "RanksReady")

    scene.kubectl("scale", "rolloutpool/learns-local", "--replicas=2")
    scene.until(
        lambda: (scene.get(ROLLOUT_POOLS, "learns-local") or {}).get("status", {}),
        lambda seen: seen.get("readyReplicas") == 2,
        timeout_s=_STEP_S,
    )
    _roll(scene, job)
    _suspend_and_resume(scene)
    # The dataflow is replaced to learn where to end; the trainer and the workers do not notice.
    last = job_status(scene, "learns")["step"] + 30
    scene.kubectl("patch", "rljob", "learns", "--type=merge", "-p", json.dumps({"spec": {"maxSteps": last}}))
    first = {pod["metadata"]["uid"] for pod in scene.pods("trainer").values()}
    (attempt,) = _attempts(scene.pods("trainer"))
    scene.kubectl("delete", "pod", "learns-solver-trainer-1", "--grace-period=0", "--force")
    # The group goes down and comes back as one.
    second = scene.until(
        lambda: scene.pods("trainer"),
        lambda pods: len(pods) == 2 and first.isdisjoint(pod["metadata"]["uid"] for pod in pods.values()),
        timeout_s=_STEP_S,
    )
    assert _attempts(second) == {attempt + 1}, scene.reasons("learns")
    # It goes on where the checkpoint was, and ends when it should.
    scene.says(RLJOBS, "learns", "Succeeded", "PoliciesTrained", timeout_s=_STEP_S)
    assert job_status(scene, "learns")["step"] >= last
    assert job_status(scene, "learns")["restartsCounted"] == 0
    scene.until(lambda: scene.pods("rollout"), lambda pods: not pods)
    scene.until(lambda: scene.reasons("learns"), lambda reasons: "Succeeded" in reasons)

    assert _balance(scene, servers)
    uid = scene.must_get(RLJOBS, "learns")["metadata"]["uid"]
    assert asyncio.run(_streams(servers, uid))
    scene.kubectl("delete", "rljob", "learns", "--wait=true", "--timeout=300s")
    for resource in (TRAINERS, ROLLOUT_POOLS, SECRETS):
        scene.until(lambda: scene.listed(resource), lambda left: left == [])  # noqa: B023 - called in this turn
    scene.until(scene.pods, lambda pods: not pods)
    scene.until(
        lambda: [entry["metadata"]["name"] for entry in scene.listed(CONFIG_MAPS)],
        lambda left: left in ([], ["kube-root-ca.crt"]),
    )
    with pytest.raises(BusUnauthenticated):
        asyncio.run(_streams(servers, uid))


def _attempts(pods: dict[str, dict[str, Any]]) -> set[int]:
    return {int(pod["metadata"]["labels"]["rl.trimtab.dev/attempt"]) for pod in pods.values()}


def _pool(scene: Scene) -> dict[str, Any]:
    return dict(scene.must_get(ROLLOUT_POOLS, "learns-local").get("status") or {})


def _roll(scene: Scene, job: dict[str, Any]) -> None:
    """A changed template replaces the workers one after the other: one that has become ready is there at all times."""
    old = {pod["metadata"]["uid"] for pod in scene.pods("rollout").values()}
    been_ready: set[str] = set()
    fewest: list[int] = []

    def look() -> dict[str, Any]:
        pool, pods = _pool(scene), scene.pods("rollout").values()
        # Not those that are ready now: on a busy machine a pod that works may miss a probe.
        been_ready.update(pod["metadata"]["uid"] for pod in pods if _is_ready(pod))
        fewest.append(sum(pod["metadata"]["uid"] in been_ready for pod in pods))
        new = [pod for pod in pods if pod["metadata"]["uid"] not in old]
        return {"new": len(new), "updated": pool.get("updatedReplicas"), "ready": pool.get("readyReplicas")}

    job["spec"]["pools"][0]["template"]["spec"]["containers"][0]["env"] += [{"name": "CHANGED", "value": "yes"}]
    scene.apply(job)
    scene.until(look, lambda seen: seen == {"new": 2, "updated": 2, "ready": 2}, timeout_s=_STEP_S)
    assert min(fewest) >= 1, "no worker was left"


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _suspend_and_resume(scene: Scene) -> None:
    scene.kubectl("patch", "rljob", "learns", "--type=merge", "-p", json.dumps({"spec": {"suspend": True}}))
    scene.until(scene.pods, lambda pods: not pods, timeout_s=_STEP_S)
    reached = job_status(scene, "learns")["step"]
    scene.kubectl("patch", "rljob", "learns", "--type=merge", "-p", json.dumps({"spec": {"suspend": False}}))
    scene.until(lambda: job_status(scene, "learns")["step"], lambda step: step > reached, timeout_s=_STEP_S)
    scene.until(lambda: _pool(scene), lambda pool: pool.get("readyReplicas") == 2, timeout_s=_STEP_S)


def _balance(scene: Scene, servers: dict[str, str]) -> list[dict[str, Any]]:
    """What a person sees who has the operator's key: its user is made from that and from the job's uid."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    environment |= {name: value for name, value in servers.items() if name.startswith("TRIMTAB_NATS")}
    completed = subprocess.run(
        [sys.executable, "-m", "trimtab.cli.main", "balance", "learns", "--namespace", scene.namespace, "--json"],
        env=environment | {"KUBECONFIG": str(scene.plane.kubeconfig())},
        capture_output=True,
        text=True,
        timeout=_STEP_S,
    )
    assert completed.returncode == 0, completed.stderr
    reports: list[dict[str, Any]] = json.loads(completed.stdout)
    return reports


async def _streams(servers: dict[str, str], uid: str) -> list[str]:
    """Of this job, on the bus; with the job, its account is gone."""
    async with await administrators_bus(servers, job_uid=uid) as bus:
        listed = await api_call(bus, "STREAM.NAMES", {}, deadline_s=60.0)
    return list(listed.get("streams") or ())
