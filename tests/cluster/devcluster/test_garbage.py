"""Dependants go with their owners in the three ways of Kubernetes, and deleted namespaces come to an end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.devcluster.bench import Bench, container, pod
from trimtab.kube.resources import CONFIG_MAPS

pytestmark = pytest.mark.slow


def _owned(bench: Bench, name: str, *owners: str, block: bool = False) -> dict[str, Any]:
    references = []
    for owner in owners:
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": owner, "uid": _uid(bench, owner)}
        references.append({**reference, "blockOwnerDeletion": block})
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "ownerReferences": references}}


def _owner(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}


def _uid(bench: Bench, name: str) -> str:
    return str(bench.get(name, CONFIG_MAPS)["metadata"]["uid"])


def _names(bench: Bench) -> set[str]:
    return {item["metadata"]["name"] for item in bench.listed(CONFIG_MAPS)} - {"kube-root-ca.crt"}


def test_dependants_of_dependants_go_too(bench: Bench) -> None:
    bench.apply(_owner("top"))
    bench.apply(_owned(bench, "middle", "top"))
    bench.apply(_owned(bench, "bottom", "middle"), _owner("bystander"))
    references = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "middle", "uid": _uid(bench, "middle")}]
    worker = pod("worker", container(f"sleep 1000 # {bench.mark}"), terminationGracePeriodSeconds=0)
    worker["metadata"]["ownerReferences"] = references
    bench.apply(worker)
    bench.ready("worker")
    bench.kubectl("delete", "configmap", "top")
    bench.gone("worker")
    assert bench.until(lambda: _names(bench), lambda names: len(names) == 1) == {"bystander"}


def test_who_has_another_owner_stays(bench: Bench) -> None:
    bench.apply(_owner("one"), _owner("other"))
    bench.apply(_owned(bench, "shared", "one", "other"))
    bench.kubectl("delete", "configmap", "one")
    kept = bench.until(
        lambda: bench.get("shared", CONFIG_MAPS)["metadata"]["ownerReferences"], lambda owners: len(owners) == 1
    )
    assert kept[0]["name"] == "other"


def test_in_the_foreground_the_owner_goes_last(bench: Bench) -> None:
    bench.apply(_owner("top"))
    held = _owned(bench, "held", "top", block=True)
    held["metadata"]["finalizers"] = ["example.com/wait"]
    bench.apply(held)
    bench.kubectl("delete", "configmap", "top", "--cascade=foreground", "--wait=false")
    bench.until(lambda: bench.get("held", CONFIG_MAPS)["metadata"], lambda metadata: "deletionTimestamp" in metadata)
    assert "deletionTimestamp" in bench.get("top", CONFIG_MAPS)["metadata"]
    bench.kubectl("patch", "configmap", "held", "--type=merge", '-p={"metadata": {"finalizers": null}}')
    bench.gone("top", "configmap")


def test_orphans_stay_without_their_owner(bench: Bench) -> None:
    bench.apply(_owner("top"))
    bench.apply(_owned(bench, "orphan", "top"))
    bench.kubectl("delete", "configmap", "top", "--cascade=orphan")
    bench.gone("top", "configmap")
    orphan = bench.until(
        lambda: bench.get("orphan", CONFIG_MAPS)["metadata"], lambda metadata: not metadata.get("ownerReferences")
    )
    assert "deletionTimestamp" not in orphan


def test_a_deleted_namespace_takes_its_pods_along(bench: Bench) -> None:
    stubborn = container(f"trap '' TERM; while true; do sleep 0.1; done # {bench.mark}")
    bench.apply(pod("last", stubborn, terminationGracePeriodSeconds=1), _owner("content"))
    bench.ready("last")
    assert bench.processes()
    bench.plane.kubectl("delete", "namespace", bench.namespace, "--timeout=300s")
    bench.until(bench.processes, lambda found: not found)
