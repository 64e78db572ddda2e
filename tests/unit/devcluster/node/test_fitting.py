from __future__ import annotations

from decimal import Decimal
from typing import Any

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.node.fitting import placements
from trimtab.devcluster.pod.spec import requests

ALLOCATABLE = {"cpu": Decimal(4), "memory": Decimal(1 << 30), "pods": Decimal(10)}


def asking(name: str, cpu: str = "1", *, created: int = 0, **spec: Any) -> dict[str, Any]:
    pod = a_pod({"resources": {"requests": {"cpu": cpu}}}, **spec)
    pod["metadata"] |= {"name": name, "uid": name, "creationTimestamp": f"2026-11-01T00:00:{created:02d}Z"}
    return pod


def decided(*pods: dict[str, Any], assumed: frozenset[str] = frozenset(), **node: Any) -> dict[str, str | None]:
    found = placements(pods, node="n", labels={"zone": "here"}, allocatable=ALLOCATABLE, assumed=assumed, **node)
    return {placement.key.name: placement.refusal for placement in found}


def test_the_older_go_first_and_the_smaller_may_pass() -> None:
    decisions = decided(asking("new", "2", created=2), asking("big", "3", created=1), asking("old", "2", created=0))
    assert list(decisions) == ["old", "big", "new"]
    assert decisions["old"] is None
    assert decisions["new"] is None
    assert decisions["big"] == "0/1 nodes are available: 1 Insufficient cpu (requested 3, free 2)."


def test_what_runs_here_and_what_was_just_bound_takes_its_room() -> None:
    here = asking("here", "2", nodeName="n")
    bound = asking("bound", "1")
    done = asking("done", "4", nodeName="n")
    done["status"]["phase"] = "Succeeded"
    elsewhere = asking("elsewhere", "4", nodeName="other")
    decisions = decided(here, bound, done, elsewhere, asking("next", "1500m"), assumed=frozenset({"bound"}))
    assert decisions == {"next": "0/1 nodes are available: 1 Insufficient cpu (requested 1.5, free 1)."}


def test_gated_and_leaving_pods_are_no_one_s_business() -> None:
    leaving = asking("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-01T00:00:00Z"
    assert decided(leaving, asking("gated", schedulingGates=[{"name": "g"}])) == {}


def test_selectors_must_match() -> None:
    decisions = decided(asking("there", nodeSelector={"zone": "there"}), asking("here", nodeSelector={"zone": "here"}))
    assert decisions["here"] is None
    assert "zone=there" in str(decisions["there"])


def test_the_number_of_pods_is_limited() -> None:
    crowd = [asking(f"p{number:02d}", "0", created=number) for number in range(12)]
    refused = [name for name, refusal in decided(*crowd).items() if refusal]
    assert refused == ["p10", "p11"]


def test_requests_are_those_of_the_peak() -> None:
    def of(cpu: str, **fields: Any) -> dict[str, Any]:
        return {"resources": {"requests": {"cpu": cpu}}, **fields}

    inits = [
        of("1", name="side", restartPolicy="Always"),
        of("3", name="init"),
        of("2", name="late", restartPolicy="Always"),
    ]
    pod = a_pod(of("500m"), initContainers=inits)
    assert requests(pod)["cpu"] == Decimal(4)  # the init container beside the sidecar before it
    pod = a_pod(of("2"), initContainers=inits)
    assert requests(pod)["cpu"] == Decimal(5)  # all that run for long


def test_limits_stand_in_for_requests() -> None:
    pod = a_pod({"resources": {"limits": {"nvidia.com/gpu": "2", "cpu": "8"}, "requests": {"cpu": "1"}}})
    assert requests(pod) == {"nvidia.com/gpu": Decimal(2), "cpu": Decimal(1)}


def test_a_cordoned_node_takes_nobody_and_a_tainted_one_those_who_tolerate_it() -> None:
    assert decided(asking("any"), cordoned=True) == {"any": "0/1 nodes are available: 1 node(s) were unschedulable."}
    taint = {"key": "gpu", "value": "busy", "effect": "NoSchedule"}
    tolerations = {
        "none": [],
        "other-value": [{"key": "gpu", "operator": "Equal", "value": "free"}],
        "other-effect": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}],
        "value": [{"key": "gpu", "value": "busy"}],
        "key": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "all": [{"operator": "Exists"}],
    }
    pods = [asking(name, "100m", tolerations=tolerated) for name, tolerated in tolerations.items()]
    refused = "0/1 nodes are available: 1 node(s) had untolerated taint {gpu: busy}."
    assert decided(*pods, taints=[taint]) == {
        name: refused if name in ("none", "other-value", "other-effect") else None for name in tolerations
    }
    assert decided(asking("any"), taints=[taint | {"effect": "PreferNoSchedule"}]) == {"any": None}
