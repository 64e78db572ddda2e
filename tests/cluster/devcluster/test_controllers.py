"""What Kubernetes' own scheduler and controllers do on the development cluster, beside garbage collection: quotas,
preemption by priority, and pods made of Deployments and Jobs.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.bench import Bench, container, pod
from trimtab.kube.resources import PODS, Resource

_QUOTAS = Resource(plural="resourcequotas", kind="ResourceQuota")


def _widgets(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"example.com/widget": str(count)}}}


@pytest.mark.slow
def test_a_quota_refuses_until_there_is_room(bench: Bench) -> None:
    counted = "requests.example.com/widget"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "widgets"},
        "spec": {"hard": {counted: "1"}},
    }
    bench.apply(quota)
    bench.until(
        lambda: (bench.get("widgets", _QUOTAS).get("status") or {}).get("hard"), lambda hard: hard == {counted: "1"}
    )
    bench.apply(pod("first", container("sleep 1000", **_widgets(1)), terminationGracePeriodSeconds=0))
    second = pod("second", container("true", **_widgets(1)), restartPolicy="Never")
    assert "exceeded quota: widgets" in bench.tries(second)
    bench.kubectl("delete", "pod", "first")
    bench.until(lambda: bench.tries(second), lambda said: "created" in said)
    bench.phase("second", "Succeeded")


@pytest.mark.slow
def test_a_pod_of_higher_priority_takes_the_place_of_another(bench: Bench) -> None:
    urgent = f"urgent-{bench.namespace}"
    bench.apply(
        {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": urgent}, "value": 1000}
    )
    stays = container("trap 'sleep 3; exit 0' TERM; while true; do sleep 0.05; done", **_widgets(2))
    bench.apply(pod("spare", stays))
    bench.ready("spare")
    bench.apply(pod("needed", container("true", **_widgets(1)), priorityClassName=urgent, restartPolicy="Never"))
    leaving = bench.until(lambda: bench.get("spare"), lambda pod: "deletionTimestamp" in pod["metadata"])
    reasons = {entry["type"]: entry.get("reason") for entry in leaving["status"]["conditions"]}
    assert reasons["DisruptionTarget"] == "PreemptionByScheduler"
    bench.phase("needed", "Succeeded")
    bench.gone("spare")


@pytest.mark.slow
def test_deployments_and_jobs_make_pods(bench: Bench) -> None:
    labels = {"app": "web"}
    template = pod("", container("sleep 1000"), labels=labels, terminationGracePeriodSeconds=0)
    deployment = {"replicas": 2, "selector": {"matchLabels": labels}}
    once = pod("", container("echo done"), restartPolicy="Never")
    bench.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": deployment | {"template": {"metadata": {"labels": labels}, "spec": template["spec"]}},
        },
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "once"},
            "spec": {"template": {"spec": once["spec"]}},
        },
    )
    bench.kubectl("wait", "deployment/web", "--for=condition=Available", "--timeout=300s")
    bench.kubectl("wait", "job/once", "--for=condition=Complete", "--timeout=300s")
    assert bench.kubectl("logs", "job/once") == "done\n"
    bench.kubectl("delete", "deployment", "web")
    bench.until(
        lambda: [item["metadata"]["name"] for item in bench.listed(PODS)],
        lambda names: not any(name.startswith("web-") for name in names),
    )
