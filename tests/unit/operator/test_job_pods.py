"""The pods of a job."""

from __future__ import annotations

from tests.unit.dataflow.jobs import job
from trimtab.operator.plan.job_pods import dataflow_pods, pool_pods, trainer_pods
from trimtab.operator.plan.pods import Restart


def test_dataflow_is_one_pod_that_always_comes_back() -> None:
    (pod,) = dataflow_pods(job("sums"))
    assert (pod.name, pod.restart, pod.group) == ("sums-dataflow-0", Restart.ALWAYS, None)
    (container,) = pod.containers
    assert container.environment == {
        "TRIMTAB_POD__NAMESPACE": "default",
        "TRIMTAB_POD__JOB": "sums",
        "TRIMTAB_POD__ROLE": "dataflow",
        "TRIMTAB_POD__NAME": "sums-dataflow-0",
        "TRIMTAB_JOB_FILE": "$(JOB_FILE)",
        "TRIMTAB_SCRATCH": "$(SCRATCH)/prompts",
    }


def test_ranks_are_a_group_that_knows_its_attempt() -> None:
    desired = job("sums", trainer={"replicas": 2, "gracePeriodSeconds": 7})
    pods = trainer_pods(desired, desired.spec.policies[0], attempt=3)
    assert [pod.name for pod in pods] == ["sums-solver-trainer-0", "sums-solver-trainer-1"]
    assert {(pod.group, pod.attempt, pod.restart, pod.grace_s) for pod in pods} == {
        ("sums-solver", 3, Restart.NEVER, 7)
    }
    for number, pod in enumerate(pods):
        (container,) = pod.containers
        assert f"--node-rank={number}" in container.command
        assert "--nnodes=2" in container.command
        assert container.environment["TRIMTAB_ATTEMPT"] == "3"
        assert container.environment["TRIMTAB_POD__POLICY"] == "solver"


def test_a_rollout_pod_has_a_worker_and_an_engine_for_each_policy_as_sidecar() -> None:
    desired = job("sums", policies=2, pools=[{"name": "both"}, {"name": "one", "policies": ["judge"]}])
    both, one = desired.spec.pools
    (pod,) = pool_pods(desired, both, replicas=1)
    assert [(container.name, container.sidecar) for container in pod.containers] == [
        ("engine-solver", True),
        ("engine-judge", True),
        ("worker", False),
    ]
    assert pod.containers[0].ports == ("ENGINE_PORT_SOLVER",)
    urls = "solver=http://127.0.0.1:$(ENGINE_PORT_SOLVER),judge=http://127.0.0.1:$(ENGINE_PORT_JUDGE)"
    assert pod.containers[2].environment["TRIMTAB_ENGINES"] == urls
    pods = pool_pods(desired, one, replicas=3)
    assert [pod.name for pod in pods] == [f"sums-one-rollout-{number}" for number in range(3)]
    assert [container.name for container in pods[0].containers] == ["engine-judge", "worker"]
    assert pods[0].containers[1].environment["TRIMTAB_POD__POOL"] == "one"


def test_no_two_pods_of_a_job_share_a_name() -> None:
    desired = job("sums", policies=2, pools=[{"name": "solver"}, {"name": "judge"}])
    pods = [*dataflow_pods(desired)]
    for policy in desired.spec.policies:
        pods += trainer_pods(desired, policy, attempt=0)
    for pool in desired.spec.pools:
        pods += pool_pods(desired, pool, replicas=2)
    assert len({pod.name for pod in pods}) == len(pods)
