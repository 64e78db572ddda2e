"""Pods that are taken away cost a job nothing; pods that fail cost it a restart; jobs that have ended go on time, or go
on when they are asked for more.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import Scene, tiny_job
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS

DATAFLOW, TRAINER = "tiny-dataflow-0", "tiny-solver-trainer-0"
NOW = "2026-01-01T00:00:00Z"
TAKEN = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": NOW}


def _status(scene: Scene, name: str = "tiny-solver") -> dict[str, Any]:
    return dict((scene.get(TRAINERS, name) or {}).get("status") or {})


def _ended(scene: Scene, pod: str, *, exit_code: int, conditions: tuple[dict[str, Any], ...] = ()) -> None:
    container = scene.pods()[pod]["spec"]["containers"][0]["name"]
    ended = {"exitCode": exit_code, "finishedAt": NOW, "startedAt": NOW, "reason": "Completed"}
    scene.patch_pod_status(
        pod,
        {
            "phase": "Succeeded" if exit_code == 0 else "Failed",
            "conditions": list(conditions),
            "containerStatuses": [
                {
                    "name": container,
                    "image": "trimtab:test",
                    "imageID": "",
                    "ready": False,
                    "restartCount": 0,
                    "state": {"terminated": ended},
                }
            ],
        },
    )


def _attempt(scene: Scene, number: int) -> dict[str, Any]:
    pods = scene.until(
        lambda: scene.pods(TRAINER),
        lambda pods: [pod["metadata"]["labels"]["rl.trimtab.dev/attempt"] for pod in pods.values()] == [str(number)],
    )
    return pods[TRAINER]


def test_a_preempted_rollout_pod_is_replaced_at_once_and_counted_once(scene: Scene) -> None:
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, "tiny-home-rollout-0")
    scene.make_ready("tiny-home-rollout-0")
    scene.patch_pod_status("tiny-home-rollout-0", {"phase": "Failed", "conditions": [TAKEN]})
    scene.has_pods(DATAFLOW, TRAINER, "tiny-home-rollout-1")
    scene.make_ready("tiny-home-rollout-1")
    status = scene.until(
        lambda: dict((scene.get(ROLLOUT_POOLS, "tiny-home") or {}).get("status") or {}),
        lambda status: status.get("readyReplicas") == 1,
    )
    assert status["preemptions"] == 1


@pytest.mark.parametrize(("conditions", "counted"), [((TAKEN,), 0), ((), 1)], ids=["preempted", "failed"])
def test_what_a_lost_rank_costs(scene: Scene, conditions: tuple[dict[str, Any], ...], counted: int) -> None:
    scene.apply(tiny_job(failurePolicy={"backoffSeconds": 1}))
    first = _attempt(scene, 1)
    _ended(scene, TRAINER, exit_code=1, conditions=conditions)
    second = _attempt(scene, 2)
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    status = scene.until(lambda: _status(scene), lambda status: status.get("restarts") == 1)
    assert status["restartsCounted"] == counted


@pytest.mark.parametrize("seconds", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_job_that_has_ended_is_deleted_when_its_time_is_over(scene: Scene, seconds: int) -> None:
    scene.apply(tiny_job(ttlSecondsAfterFinished=seconds), tiny_job("stays"))
    _attempt(scene, 1)
    _ended(scene, TRAINER, exit_code=0)
    scene.until(lambda: "stays-solver-trainer-0" in scene.pods(), bool)
    _ended(scene, "stays-solver-trainer-0", exit_code=0)
    scene.says(RLJOBS, "stays", "Succeeded", "PoliciesTrained")
    scene.job_gone("tiny")
    assert "CleanupIncomplete" not in scene.reasons("tiny")
    assert scene.get(RLJOBS, "stays") is not None


def test_a_job_that_has_succeeded_goes_on_when_it_is_to_do_more_steps(scene: Scene) -> None:
    scene.apply(tiny_job())
    _attempt(scene, 1)
    _ended(scene, TRAINER, exit_code=0)
    scene.says(RLJOBS, "tiny", "Succeeded", "PoliciesTrained")
    # What has ended stays for its logs, and nothing else does.
    scene.has_pods(TRAINER)
    scene.apply(tiny_job(maxSteps=20))
    scene.has_pods(DATAFLOW, TRAINER, "tiny-home-rollout-0")
    _attempt(scene, 2)
    job = scene.until(
        lambda: scene.must_get(RLJOBS, "tiny")["status"],
        lambda status: "completionTime" not in status and "goals" not in status,
    )
    assert [one["status"] for one in job["conditions"] if one["type"] == "Succeeded"] == ["Unknown"]
    scene.until(lambda: scene.reasons("tiny"), lambda reasons: "Continued" in reasons)
    _ended(scene, TRAINER, exit_code=0)
    scene.says(RLJOBS, "tiny", "Succeeded", "PoliciesTrained")
    assert scene.must_get(RLJOBS, "tiny")["status"]["goals"] == {"maxSteps": 20}
