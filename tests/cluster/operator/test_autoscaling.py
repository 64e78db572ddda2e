"""A job whose rollouts become slow gets more pods, and gives them back when they are fast again; each step is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.operator.quickstart_manifest import in_a_cluster, job_status
from tests.cluster.operator.scene import Scene
from tests.quickstart_job import make_quickstart
from trimtab.devnode.server import DevelopmentNode
from trimtab.kube.resources import EVENTS, ROLLOUT_POOLS

_PHASE_S = 180.0
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


# A trainer whose steps take their time, as those of a large model do, and leave the few cores here to the others.
_SLOW_TRAINER = """
import time
from trimtab.trainer.__main__ import main
from trimtab.trainer.learner import Learner

update = Learner.update

def slow(learner, totals):
    time.sleep(0.7)
    return update(learner, totals)

Learner.update = slow
main()
"""


def _job(file: Path) -> dict[str, Any]:
    job = in_a_cluster(file)
    spec = job["spec"]
    spec["workflow"] = {"entrypoint": "slow_at_times:SlowAtTimes", "source": {"configMap": {"name": "workflow"}}}
    spec["data"]["batchSize"] = 64
    trainer = spec["policies"][0]["trainer"]
    trainer["checkpoint"] = {"everySteps": 20}
    trainer["template"]["spec"]["containers"][0]["command"] = ["python", "-c", _SLOW_TRAINER]
    spec["pools"][0]["maxConcurrency"] = 64
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


@pytest.mark.timeout(600)
def test_a_pool_grows_and_shrinks_with_what_rollouts_take(scene: Scene, node: DevelopmentNode, tmp_path: Path) -> None:
    file = make_quickstart(tmp_path, name="elastic", max_steps=1_000_000)
    slowness = tmp_path / "seconds"
    slowness.write_text("6")
    code = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "workflow"},
        "data": {"slow_at_times.py": _WORKFLOW},
    }
    scene.apply(code, _job(file))
    scene.until(lambda: job_status(scene, "elastic").get("step", 0), lambda step: step >= 1, timeout_s=_PHASE_S)
    scene.until(lambda: _size(scene), lambda size: size["wanted"] == _MOST, timeout_s=_PHASE_S)
    scene.until(lambda: _size(scene), lambda size: size["ready"] == _MOST, timeout_s=_PHASE_S)
    slowness.write_text("0")
    scene.until(lambda: _size(scene), lambda size: size["wanted"] == size["ready"] == 1, timeout_s=_PHASE_S)
    told = [event["message"] for event in scene.listed(EVENTS) if event["reason"] == "SuccessfulRescale"]
    assert any("New size: 3; reason: TrainerStarving" in message for message in told), told
    assert any("New size: 1" in message for message in told), told
    described = scene.kubectl("describe", "rljob", "elastic")
    for word in ("AbleToScale", "ScalingActive", "ValidMetricFound", "SuccessfulRescale", "Waiting Fraction"):
        assert word in described, json.dumps(described)
    # Nobody was killed for it: what was taken away had time to drain.
    assert job_status(scene, "elastic").get("restarts", 0) == 0
