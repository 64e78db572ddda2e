"""The chart grants what the operator's own RBAC files do, which its tests run with, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.support.chart.rendering import NAMESPACE, ROOT, Object, name_of, objects, of_kind, values_of

RBAC = ROOT / "operator/trimtab/operator/rbac"


def _rules(file: str, kind: str) -> list[dict[str, Any]]:
    (role,) = [
        entry for entry in yaml.safe_load_all((RBAC / file).read_text(encoding="utf-8")) if entry["kind"] == kind
    ]
    rules: list[dict[str, Any]] = role["rules"]
    return rules


def _granted(entries: list[Object], account: str) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What each binding of the account gives it, by kind of binding and namespace."""
    roles = {
        (role["kind"], role["metadata"].get("namespace", ""), name_of(role)): role["rules"]
        for role in of_kind(entries, "Role", "ClusterRole")
    }
    granted: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for binding in of_kind(entries, "RoleBinding", "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}]
        place = binding["metadata"].get("namespace", "")
        target = binding["roleRef"]
        key = (target["kind"], place if target["kind"] == "Role" else "", target["name"])
        granted.setdefault((binding["kind"], place), []).extend(roles[key])
    return granted


def test_whole_cluster() -> None:
    webhook = {
        "apiGroups": ["admissionregistration.k8s.io"],
        "resources": ["validatingwebhookconfigurations"],
        "resourceNames": ["trimtab-system-trimtab-admission"],
        "verbs": ["get", "patch"],
    }
    assert _granted(objects({}), "trimtab-operator") == {
        ("ClusterRoleBinding", ""): [webhook, *_rules("cluster.yaml", "ClusterRole")],
        ("RoleBinding", NAMESPACE): _rules("cluster.yaml", "Role"),
    }


def test_some_namespaces_and_the_lease_at_home() -> None:
    keys, account = (
        [
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
        ]
        for name in ("trimtab-operator-job-keys", "trimtab-nats-accounts")
    )
    assert _granted(objects(values_of("namespaced")), "trimtab-operator") == {
        ("RoleBinding", "team-a"): _rules("namespaced.yaml", "Role"),
        ("RoleBinding", "team-b"): _rules("namespaced.yaml", "Role"),
        ("RoleBinding", NAMESPACE): keys + _rules("cluster.yaml", "Role") + account,
    }
    elsewhere = values_of("minted") | {"namespaces": ["team-a"]}
    granted = _granted(objects(elsewhere), "trimtab-operator")["RoleBinding", NAMESPACE]
    assert granted == keys + _rules("cluster.yaml", "Role")


def test_own_namespace_needs_nothing_more() -> None:
    assert _granted(objects(values_of("own_namespace")), "trimtab-operator") == {
        ("RoleBinding", NAMESPACE): _rules("namespaced.yaml", "Role"),
    }


def test_some_namespaces_ask_for_no_right_in_the_cluster() -> None:
    assert not of_kind(objects(values_of("namespaced")), "ClusterRole", "ClusterRoleBinding")


def test_none_where_somebody_else_grants_them() -> None:
    kinds = {entry["kind"] for entry in objects(values_of("bare"))}
    assert kinds == {"ConfigMap", "Deployment", "Service", "ValidatingWebhookConfiguration"}


@pytest.mark.parametrize(
    ("suffix", "roles", "verbs"),
    [
        ("-view", {"view", "edit", "admin"}, {"get", "list", "watch"}),
        ("-edit", {"edit", "admin"}, {"create", "update", "patch", "delete", "deletecollection"}),
    ],
)
def test_people_get_it_with_the_roles_they_have(suffix: str, roles: set[str], verbs: set[str]) -> None:
    (role,) = [entry for entry in of_kind(objects({}), "ClusterRole") if name_of(entry).endswith(suffix)]
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    labels = {key.removeprefix(prefix) for key, on in role["metadata"]["labels"].items() if key.startswith(prefix)}
    assert labels == roles
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == verbs
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"rl.trimtab.dev"}
    # Nobody writes a status, or a Trainer, but the operator.
    written = {resource for rule in role["rules"] if "update" in rule["verbs"] for resource in rule["resources"]}
    assert written <= {"rljobs", "rolloutpools", "rolloutpools/scale"}
