"""The pod that writes to trackers: when there is one, what it has, when it goes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, said, trainer
from trimtab.api.job import RLJob
from trimtab.api.trainer import TrainerStatus
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.job_pods import TRACKING_GRACE_S, dataflow_pods, tracking_pods
from trimtab.operator.plan.pods import ObservedPod, Phase, PodPlan
from trimtab.operator.pods.rendering import PodSite, render_pod

TRACKERS: list[dict[str, Any]] = [
    {"type": "wandb", "keySecret": {"name": "wb", "key": "api-key"}},
    {"type": "mlflow", "url": "https://mlflow.example.org", "keySecret": {"name": "ml", "key": "token"}},
]
JOB = job(tracking=TRACKERS)


def _planned(of: RLJob = JOB) -> PodPlan:
    (pod,) = tracking_pods(of)
    return pod


def _running(plan: PodPlan, **fields: Any) -> ObservedPod:
    return ObservedPod(name=plan.name, **{"phase": Phase.RUNNING, "revision": plan.revision, **fields})


def _dataflow() -> ObservedPod:
    (pod,) = dataflow_pods(JOB)
    return _running(pod)


THERE = Observed(pools=[pool(JOB)], trainers=[trainer(JOB)], pods=[_dataflow()], tracking=[_running(_planned())])
SUSPENDED = JOB.model_copy(update={"spec": JOB.spec.model_copy(update={"suspend": True})})


def test_a_job_with_trackers_has_one_pod_for_them_where_the_executor_makes_such() -> None:
    assert said(plan_job(JOB, replace(THERE, tracking=[]), now=0.0).actions) == ["start tracking"]
    assert said(plan_job(JOB, THERE, now=0.0).actions) == []
    assert said(plan_job(JOB, replace(THERE, tracking=None), now=0.0).actions) == [], "one machine has processes"
    without = job()
    assert tracking_pods(without) == []
    assert said(plan_job(without, replace(THERE, tracking=[]), now=0.0).actions) == []


def test_one_that_was_taken_away_comes_again_and_one_of_an_older_manifest_is_replaced() -> None:
    ended = replace(THERE, tracking=[_running(_planned(), phase=Phase.FAILED)])
    assert said(plan_job(JOB, ended, now=0.0).actions) == ["remove tracking", "start tracking"]
    fewer = job(tracking=TRACKERS[:1])
    assert said(plan_job(fewer, THERE, now=0.0).actions) == ["stop tracking"]
    assert said(plan_job(job(), THERE, now=0.0).actions) == ["stop tracking"]


def test_it_is_stopped_when_nobody_says_anything_more() -> None:
    busy = trainer(JOB).model_copy(update={"status": TrainerStatus(replicas=1)})
    assert said(plan_job(SUSPENDED, replace(THERE, trainers=[busy]), now=0.0).actions) == []
    assert said(plan_job(SUSPENDED, THERE, now=0.0).actions) == ["stop dataflow-0"]
    leaving = replace(THERE, pods=[replace(_dataflow(), stopping=True)])
    assert said(plan_job(SUSPENDED, leaving, now=0.0).actions) == []
    alone = replace(THERE, pods=[])
    assert said(plan_job(SUSPENDED, alone, now=0.0).actions) == ["stop tracking"]


def test_what_is_wrong_with_it_is_told_and_ends_no_job() -> None:
    broken = _running(_planned(), misconfigured=True, exit_code=78, message="no library", crashed_at=5.0)
    plan = plan_job(JOB, replace(THERE, tracking=[broken]), now=6.0)
    assert said(plan.actions) == []
    assert plan.status.completion_time is None
    assert plan.status.last_error is not None
    assert (plan.status.last_error.pod, plan.status.last_error.message) == ("job-tracking", "no library")


def _rendered(of: RLJob) -> dict[str, Any]:
    site = PodSite(
        owner={"kind": "RLJob", "metadata": {"name": "job", "namespace": "here", "uid": "u"}},
        job="job",
        image="tracking:1",
        environment={},
        secret="job-credentials",
        secret_files={"nats-credentials": "nats-credentials-tracking"},
        manifest="job-dataflow-1",
        requests={"cpu": "50m"},
    )
    return render_pod(_planned(of), site)


def test_it_has_keys_of_trackers_by_reference_no_token_and_time_to_tell_the_rest() -> None:
    pod = _rendered(JOB)
    (container,) = pod["spec"]["containers"]
    secrets = {entry["name"]: entry["valueFrom"] for entry in container["env"] if "valueFrom" in entry}
    assert secrets == {
        "WANDB_API_KEY": {"secretKeyRef": {"name": "wb", "key": "api-key"}},
        "MLFLOW_TRACKING_TOKEN": {"secretKeyRef": {"name": "ml", "key": "token"}},
    }
    assert pod["metadata"]["labels"]["rl.trimtab.dev/role"] == "tracking"
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["resources"]["requests"] == {"cpu": "50m"}
    assert pod["spec"]["terminationGracePeriodSeconds"] == TRACKING_GRACE_S


@pytest.mark.parametrize("field", ["env", "volumeMounts"])
def test_its_template_adds_to_it(field: str) -> None:
    extra = {"env": [{"name": "WANDB_ENTITY", "value": "lab"}], "volumeMounts": [{"name": "v", "mountPath": "/curves"}]}
    template = {"spec": {"containers": [{"name": "tracking", **extra}], "volumes": [{"name": "v", "emptyDir": {}}]}}
    pod = _rendered(job(tracking=TRACKERS, trackingTemplate=template))
    (container,) = pod["spec"]["containers"]
    assert extra[field][0] in container[field]
    assert len(container["volumeMounts"]) > 1
