"""The sandbox of a rollout pod, as it is planned, rendered and told of."""

from __future__ import annotations

from typing import Any

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, rollout_pod, worker
from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.job import RLJob
from trimtab.api.workflow import WorkflowSandbox
from trimtab.fabric.wire.member import SandboxLayers
from trimtab.kube.resources import Object
from trimtab.operator.conditions import find
from trimtab.operator.plan.children import pool_of
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.plan.pool import plan_pool
from trimtab.operator.pods.rendering import PodSite, render_pod

COMPLETE = SandboxLayers(holding=("namespaces", "landlock", "seccomp"))
PARTIAL = SandboxLayers(holding=("landlock", "seccomp"), missing={"namespaces": "no\x1b[31m permission"})


def sandboxed_job(template: dict[str, Any] | None = None, **settings: Any) -> RLJob:
    plain = job(pools=[{"name": "local", "template": template or {}}])
    workflow = plain.spec.workflow.model_copy(update={"sandbox": WorkflowSandbox.model_validate(settings)})
    return plain.model_copy(update={"spec": plain.spec.model_copy(update={"workflow": workflow})})


def rendered(desired: RLJob) -> Object:
    plan = rollout_pod(desired, pool_of(desired, desired.spec.pools[0], None), 0)
    owner = {"kind": "RolloutPool", "metadata": {"name": "job-local", "namespace": "here", "uid": "uid"}}
    return render_pod(
        plan,
        PodSite(
            owner=owner,
            job="job",
            image="trimtab:1",
            environment={"TRIMTAB_NATS__SERVERS": "nats://n:4222"},
            secret="job-credentials",
            secret_files={"nats-credentials": "nats-credentials-here"},
            manifest="manifest",
            engine_requests={"cpu": "1"},
        ),
    )


def container(pod: Object, name: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        entry for entry in (*pod["spec"]["containers"], *pod["spec"]["initContainers"]) if entry["name"] == name
    )
    return found


def test_a_job_without_a_sandbox_has_none() -> None:
    pod = rendered(job())
    assert {entry["name"] for entry in pod["spec"]["initContainers"]} == {"engine-solver"}
    assert not [volume for volume in pod["spec"]["volumes"] if volume["name"].startswith("sandbox")]
    assert "runtimeClassName" not in pod["spec"]


def test_the_container_has_nothing_of_the_others() -> None:
    pod = rendered(sandboxed_job())
    sandbox = container(pod, "sandbox")
    assert sandbox["restartPolicy"] == "Always"
    assert sandbox["env"] == [{"name": "SANDBOX", "value": "/trimtab/sandbox"}]
    shared = {mount["name"] for mount in container(pod, "worker")["volumeMounts"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in sandbox["volumeMounts"]}
    assert shared & set(mounts) == {"sandbox"}
    # Something is mounted where Kubernetes would put a token, whatever the pod's template says.
    assert mounts["sandbox-token"] == "/var/run/secrets/kubernetes.io/serviceaccount"
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert all("emptyDir" in volumes[name] for name in mounts)
    assert sandbox["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert not {"sandbox"} & {mount["name"] for mount in container(pod, "engine-solver")["volumeMounts"]}


def test_the_worker_finds_it_and_it_is_told_its_limits() -> None:
    pod = rendered(sandboxed_job(memoryMib=100, diskMib=10, outputKib=1, timeoutSeconds=3, processes=4, concurrency=2))
    command = container(pod, "sandbox")["command"]
    assert command[:3] == ["python", "-m", "trimtab.rollout.sandbox"]
    assert set(command[3:]) == {
        *("--socket=$(SANDBOX)/programs", "--wall-s=3", "--cpu-s=3", "--processes=4", "--concurrency=2"),
        *(f"--memory-bytes={100 << 20}", f"--disk-bytes={10 << 20}", "--output-bytes=1024"),
    }
    environment = {entry["name"]: entry.get("value") for entry in container(pod, "worker")["env"]}
    assert (environment["SANDBOX"], environment["TRIMTAB_SANDBOX"]) == ("/trimtab/sandbox", "$(SANDBOX)/programs")
    assert container(pod, "sandbox")["resources"] == {"requests": {"memory": "256Mi"}, "limits": {"memory": "476Mi"}}


def test_image_and_runtime_are_settable() -> None:
    pod = rendered(sandboxed_job(image="mine:2", runtimeClassName="gvisor"))
    assert container(pod, "sandbox")["image"] == "mine:2"
    assert container(pod, "worker")["image"] == "trimtab:1"
    assert pod["spec"]["runtimeClassName"] == "gvisor"


def test_what_a_template_says_of_engines_is_not_said_of_the_sandbox() -> None:
    secret = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    of_engines = {"spec": {"containers": [{"name": "engine", "env": [secret]}]}}
    assert secret not in container(rendered(sandboxed_job(of_engines)), "sandbox")["env"]
    of_it = {"spec": {"containers": [{"name": "sandbox", "resources": {"limits": {"memory": "1Gi"}}}]}}
    assert container(rendered(sandboxed_job(of_it)), "sandbox")["resources"]["limits"] == {"memory": "1Gi"}


def condition(desired: RLJob, *said: SandboxLayers | None) -> Condition | None:
    fleet = pool(desired, replicas=len(said))
    pods: list[ObservedPod] = [worker(desired, fleet, number, sandbox=layers) for number, layers in enumerate(said)]
    return find(plan_pool(desired, fleet, pods, now=1000.0).status.conditions, ConditionType.SANDBOXED)


def test_the_pool_says_which_layers_hold() -> None:
    assert condition(job(), COMPLETE) is None
    waiting = condition(sandboxed_job(), None)
    assert waiting is not None
    assert waiting.status == "Unknown"
    complete = condition(sandboxed_job(), COMPLETE)
    assert complete is not None
    assert (complete.status, complete.reason) == ("True", "AllLayersHold")
    partial = condition(sandboxed_job(), COMPLETE, PARTIAL, None)
    assert partial is not None
    assert (partial.status, partial.reason) == ("True", "LayersMissing")
    assert (
        partial.message
        == "programs in job-local-rollout-1 are held by landlock, seccomp, without namespaces: no[31m permission"
    )
