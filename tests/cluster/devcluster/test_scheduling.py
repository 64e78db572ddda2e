"""Scheduling on the development cluster: what fits is bound, the rest is told why it waits, and taken when there is
room.
"""

from __future__ import annotations

import json
from typing import Any

from tests.support.devcluster.bench import Bench, container, pod
from trimtab.kube.resources import NODES


def _widgets(count: int) -> dict[str, Any]:
    return {"resources": {"limits": {"example.com/widget": str(count)}}}


def _scheduled(bench: Bench, name: str) -> dict[str, Any]:
    conditions = bench.get(name)["status"].get("conditions", ())
    return next((condition for condition in conditions if condition["type"] == "PodScheduled"), {})


def test_a_pod_waits_until_what_it_asks_for_is_free(bench: Bench) -> None:
    holder = pod("holder", container("sleep 1000", **_widgets(2)), terminationGracePeriodSeconds=0)
    bench.apply(holder)
    bench.ready("holder")
    bench.apply(pod("waiter", container("true", **_widgets(1)), restartPolicy="Never"))
    bench.apply(pod("small", container("true"), restartPolicy="Never"))
    refused = bench.until(lambda: _scheduled(bench, "waiter"), lambda condition: condition.get("status") == "False")
    assert refused["reason"] == "Unschedulable"
    assert "Insufficient example.com/widget" in refused["message"]
    bench.phase("small", "Succeeded")  # who waits does not keep others from going
    bench.has_events("waiter", "FailedScheduling")
    bench.kubectl("delete", "pod", "holder")
    bench.phase("waiter", "Succeeded")
    assert _scheduled(bench, "waiter")["status"] == "True"


def test_a_selector_that_no_node_has_is_told(bench: Bench) -> None:
    bench.apply(pod("picky", container("true"), nodeSelector={"gpu": "h100"}))
    refused = bench.until(lambda: _scheduled(bench, "picky"), lambda condition: condition.get("status") == "False")
    assert "didn't match Pod's node affinity/selector" in refused["message"]


def test_a_gated_pod_is_left_alone_until_its_gate_opens(bench: Bench) -> None:
    bench.apply(pod("gated", container("true"), schedulingGates=[{"name": "quota"}], restartPolicy="Never"))
    bench.apply(pod("marker", container("true"), restartPolicy="Never"))
    bench.phase("marker", "Succeeded")
    assert "nodeName" not in bench.get("gated")["spec"]
    bench.kubectl("patch", "pod", "gated", "--type=json", '-p=[{"op": "remove", "path": "/spec/schedulingGates"}]')
    bench.phase("gated", "Succeeded")


def test_the_node_is_described(bench: Bench) -> None:
    node = bench.get("development", NODES)
    assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
    assert node["status"]["allocatable"]["example.com/widget"] == "2"
    assert "development" in bench.plane.kubectl("get", "leases", "-n", "kube-node-lease").stdout


def test_a_node_that_was_thought_lost_says_that_it_is_there(bench: Bench) -> None:
    """As after a machine was suspended for longer than the node lifecycle controller waits."""
    unknown = {"status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}}
    bench.plane.kubectl("patch", "node", "development", "--subresource=status", f"--patch={json.dumps(unknown)}")

    def node() -> tuple[str, list[str]]:
        found = bench.get("development", NODES)
        ready = {condition["type"]: condition["status"] for condition in found["status"]["conditions"]}["Ready"]
        return ready, [taint["key"] for taint in found["spec"].get("taints", ())]

    bench.until(node, lambda seen: "node.kubernetes.io/unreachable" in seen[1])
    bench.until(node, lambda seen: seen == ("True", []))
    bench.apply(pod("after", container("true"), restartPolicy="Never"))
    bench.phase("after", "Succeeded")
