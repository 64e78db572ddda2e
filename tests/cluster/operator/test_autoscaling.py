"""A job whose rollouts become slow gets more pods, and gives them back when they are fast again; each step is told."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.agent.messages_server import MessagesServer
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.kube.resources import EVENTS, ROLLOUT_POOLS

pytestmark = pytest.mark.slow

_PHASE_S = 600.0
_MOST = 3

# What a researcher would write, with a file in place of a tool that is slow at times.
_WORKFLOW = """
import asyncio
from pathlib import Path

from trimtab.rollout.workflows.single_turn import SingleTurn


class SlowAtTimes(SingleTurn):
    async def run(self, task, team, /):
        await asyncio.sleep(float(Path("/quickstart/seconds").read_text()))
        return await super().run(task, team)
"""


# A trainer whose steps take their time, as those of a large model do, and leave the few cores here to the others: one
# engine makes a step's few samples in a fraction of it when tools answer at once, even on a machine that is busy.
_SLOW_TRAINER = """
import time
from trimtab.trainer.__main__ import main
from trimtab.trainer.learner import Learner

update = Learner.update

def slow(learner, totals):
    time.sleep(1.5)
    return update(learner, totals)

Learner.update = slow
main()
"""


def _job(file: Path) -> dict[str, Any]:
    job = in_a_cluster(file)
    spec = job["spec"]
    spec["workflow"] = {"entrypoint": "slow_at_times:SlowAtTimes", "source": {"configMap": {"name": "workflow"}}}
    spec["data"]["batchSize"] = 32
    trainer = spec["policies"][0]["trainer"]
    trainer["checkpoint"] = {"everySteps": 20}
    trainer["template"]["spec"]["containers"][0]["command"] = ["python", "-c", _SLOW_TRAINER]
    spec["pools"][0]["maxConcurrency"] = 32
    at_once = {"maxChange": _MOST, "periodSeconds": 1}
    spec["autoscaling"] = {
        "mode": "Auto",
        "minReplicas": 1,
        "maxReplicas": _MOST,
        "windowSteps": 3,
        # Three engines, a trainer and their cluster on a few cores: some waiting is the machine's.
        "tauLow": 0.3,
        "tauHigh": 0.5,
        "cooldownSeconds": 2,
        "scaleUp": at_once,
        "scaleDown": {**at_once, "stabilizationSeconds": 3},
    }
    return job


def _size(scene: Scene) -> dict[str, Any]:
    pool = scene.must_get(ROLLOUT_POOLS, "elastic-local")
    decision = job_status(scene, "elastic").get("autoscaling") or {}
    ready = (pool.get("status") or {}).get("readyReplicas", 0)
    return {"wanted": pool["spec"]["replicas"], "ready": ready, "decision": decision}


class Maintainer(NamedTuple):
    manifest: dict[str, Any]
    told: str
    """A part of the event about its first change."""


@pytest.fixture(params=["Policy", "Agent"])
def maintainer(request: pytest.FixtureRequest, scene: Scene) -> Iterator[Maintainer]:
    """The formula, or a language model at the other end of a real connection that follows its advice."""
    if request.param == "Policy":
        yield Maintainer({"type": "Policy"}, "reason: TrainerStarving")
        return
    with messages_server() as server:
        key = {"name": "anthropic", "key": "api-key"}
        scene.kubectl("create", "secret", "generic", key["name"], f"--from-literal={key['key']}={server.api_key}")
        agent = {"model": "claude-local", "apiKeySecret": key, "baseUrl": server.url, "approval": "Apply"}
        yield Maintainer({"type": "Agent", "agent": agent}, "reason: AgentProposal")
        assert server.requests, "the agent was never asked"
        assert server.api_key not in scene.operator.log
        assert server.api_key not in scene.kubectl("get", "rljobs,events", "-o", "json")


@contextmanager
def messages_server() -> Iterator[MessagesServer]:
    """In a thread of its own, as this test has no loop."""
    server, loop = MessagesServer(api_key="sk-ant-local-0123456789"), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    running = server.running()
    asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result(120)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result(120)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def test_a_pool_grows_and_shrinks_with_what_rollouts_take(
    scene: Scene, node: DevelopmentNode, maintainer: Maintainer, tmp_path: Path
) -> None:
    file = make_quickstart(tmp_path, name="elastic", max_steps=1_000_000)
    slowness = tmp_path / "seconds"
    slowness.write_text("6")
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "workflow"},
        "data": {"slow_at_times.py": _WORKFLOW},
    }
    job = _job(file)
    job["spec"]["autoscaling"]["maintainer"] = maintainer.manifest
    scene.apply(code, job)
    scene.until(lambda: job_status(scene, "elastic").get("step", 0), lambda step: step >= 1, timeout_s=_PHASE_S)
    scene.until(lambda: _size(scene), lambda size: size["wanted"] == _MOST, timeout_s=_PHASE_S)
    scene.until(lambda: _size(scene), lambda size: size["ready"] == _MOST, timeout_s=_PHASE_S)
    slowness.write_text("0")
    scene.until(lambda: _size(scene), lambda size: size["wanted"] == size["ready"] == 1, timeout_s=_PHASE_S)
    told = [event["message"] for event in scene.listed(EVENTS) if event["reason"] == "SuccessfulRescale"]
    assert any(maintainer.told in message for message in told), told
    assert any("New size: 1" in message for message in told), told
    described = scene.kubectl("describe", "rljob", "elastic")
    for word in ("AbleToScale", "ScalingActive", "ValidMetricFound", "SuccessfulRescale", "Waiting Fraction"):
        assert word in described, json.dumps(described)
    # Nobody was killed for it: what was taken away had time to drain.
    assert job_status(scene, "elastic").get("restarts", 0) == 0
