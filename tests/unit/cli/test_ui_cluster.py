"""Jobs of a cluster as the page shows them: by their statuses and their pods."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.support.api.manifests import job as manifest
from trimtab.cli.ui.cluster import ClusterRun
from trimtab.kube.resources import Key

KEY = Key("research", "math")
BEGAN = "2026-11-19T04:00:00Z"


def _job(version: int, **status: Any) -> dict[str, Any]:
    job = manifest("math")
    job["metadata"] = {
        "name": "math",
        "namespace": "research",
        "uid": "u-1",
        "resourceVersion": str(version),
        "creationTimestamp": BEGAN,
    }
    return job | {"status": {"startTime": BEGAN} | status}


def _policy(step: int, reward: float) -> dict[str, Any]:
    return {"name": "solver", "step": step, "version": step, "reward": reward, "waitingFraction": 0.4}


def _scaling(after: int, *, at: str) -> dict[str, Any]:
    return {
        "mode": "Auto",
        "current": after - 1,
        "recommended": after + 3,
        "bounded": after,
        "reason": "TrainerStarving",
        "message": "the trainer waits",
        "lastScaleTime": at,
    }


def _pod(name: str, *, ready: bool = True) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "namespace": "research",
            "resourceVersion": "7",
            "creationTimestamp": BEGAN,
            "labels": {"rl.trimtab.dev/role": "rollout", "rl.trimtab.dev/pool": "big"},
        },
        "spec": {"nodeName": "node-3"} if ready else {},
        "status": {
            "phase": "Running" if ready else "Pending",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"restartCount": 2}] if ready else [],
        },
    }


def _run() -> ClusterRun:
    return ClusterRun(KEY, _job(1), asks_bus=False)


def test_a_status_becomes_points_a_line_and_what_is_now() -> None:
    run = _run()
    condition = {
        "type": "Succeeded",
        "status": "Unknown",
        "reason": "Training",
        "message": "step 3",
        "lastTransitionTime": BEGAN,
        "observedGeneration": 1,
    }
    status: dict[str, Any] = {
        "step": 3,
        "reward": 0.25,
        "readyReplicas": 1,
        "policies": [_policy(3, 0.25)],
        "pools": [{"name": "big", "readyReplicas": 1, "desiredReplicas": 2}],
        "conditions": [condition],
    }
    pods = {Key("research", name): _pod(name, ready=ready) for name, ready in (("a", True), ("b", False))}
    assert run.take(_job(2, **status), pods, at=1_795_000_000.0)
    assert not run.take(_job(2, **status), pods, at=1_795_000_001.0)
    assert (run.summary.state, run.summary.step, run.summary.ready, run.summary.wanted) == ("Training", 3, 1, 2)
    assert run.is_live
    values = [one.values for one in run.telling.told if one.values]
    assert values == [
        {"solver/reward": 0.25, "solver/waiting": 0.4},
        {"fleet/big/ready": 1.0, "fleet/big/wanted": 2.0},
    ]
    assert [(pod.id, pod.state, pod.doing) for pod in run.now.pods] == [
        ("a", "ready", "on node-3 · 2 restarts"),
        ("b", "Pending", "waits for a node"),
    ]
    assert [condition.reason for condition in run.now.conditions] == ["Training"]

    run.take(_job(3, **status | {"step": 4, "policies": [_policy(4, 0.5)]}), pods, at=1_795_000_002.0)
    assert run.telling.told[-1].values["solver/reward"] == 0.5
    assert run.telling.curve == [0.25, 0.5]


def test_each_change_of_the_fleet_is_told_once_with_its_reason() -> None:
    run = _run()
    scaled = [(2, 2, BEGAN), (3, 2, BEGAN), (4, 3, "2026-11-19T04:10:00Z")]
    for version, after, at in scaled:
        run.take(_job(version, autoscaling=_scaling(after, at=at)), {}, at=1_795_000_000.0 + version)
    events = [one.event for one in run.telling.told if one.event is not None]
    assert [type(event).__name__ for event in events] == ["Began", "Rescaled", "Rescaled"]
    assert run.now.decision is not None
    assert (run.now.decision.bounded, run.now.decision.reason) == (3, "TrainerStarving")


def test_a_job_that_cannot_be_read_does_not_end_the_page() -> None:
    run = _run()
    assert not run.take({"metadata": {"name": "math", "resourceVersion": "9"}, "spec": {"policies": 7}}, {}, at=1.0)
    assert run.summary.state == "unknown"


def test_the_operators_image_can_show_a_cluster() -> None:
    """It has none of what runs jobs."""
    code = (
        "import sys\n"
        "for name in ('psutil', 'torch', 'transformers', 'tokenizers', 'pyarrow', 'numba', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"
        "import trimtab.cli.ui, trimtab.cli.ui.cluster, trimtab.kube.access\n"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert completed.returncode == 0, completed.stderr
