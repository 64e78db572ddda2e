"""The page in a cluster: off unless it is asked for, and then it may read two kinds and be reached by the kubelet."""

from __future__ import annotations

from tests.support.chart.rendering import NAMESPACE, name_of, named, objects, of_kind, values_of
from trimtab.cli.ui import ui

_READS = [
    {"apiGroups": ["rl.trimtab.dev"], "resources": ["rljobs"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]},
]
_ON = {"ui": {"enabled": True}}


def test_it_is_not_there_unless_it_is_asked_for() -> None:
    assert not [entry for entry in objects({}) if "-ui" in name_of(entry)]


def test_it_may_read_jobs_and_pods_and_nothing_else() -> None:
    entries = objects(_ON)
    name = "trimtab-system-trimtab-ui"
    assert named(entries, "ClusterRole", name)["rules"] == _READS
    binding = named(entries, "ClusterRoleBinding", name)
    assert binding["roleRef"]["name"] == name
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "trimtab-ui", "namespace": NAMESPACE}]
    spec = named(entries, "Deployment", "trimtab-ui")["spec"]["template"]["spec"]
    assert [volume["name"] for volume in spec["volumes"]] == ["tmp"], "it has no credentials but its own token"


def test_in_some_namespaces_it_looks_at_those() -> None:
    entries = objects(values_of("namespaced") | _ON)
    assert not of_kind(entries, "ClusterRole", "ClusterRoleBinding")
    for namespace in ("team-a", "team-b"):
        (role,) = [
            role
            for role in of_kind(entries, "Role")
            if name_of(role) == "trimtab-ui" and role["metadata"]["namespace"] == namespace
        ]
        assert role["rules"] == _READS
    (container,) = named(entries, "Deployment", "trimtab-ui")["spec"]["template"]["spec"]["containers"]
    assert container["args"] == ["--namespace=team-a", "--namespace=team-b"]


def test_nobody_reaches_it_but_by_the_node() -> None:
    entries = objects(_ON)
    assert named(entries, "NetworkPolicy", "trimtab-ui")["spec"]["ingress"] == []
    assert not [service for service in of_kind(entries, "Service") if name_of(service) == "trimtab-ui"]
    (container,) = named(entries, "Deployment", "trimtab-ui")["spec"]["template"]["spec"]["containers"]
    assert [port["name"] for port in container["ports"]] == ["probes"]


def test_its_command_has_options_that_there_are() -> None:
    (container,) = named(objects(_ON), "Deployment", "trimtab-ui")["spec"]["template"]["spec"]["containers"]
    command = container["command"]
    assert command[:4] == ["python", "-m", "trimtab.cli.main", "ui"]
    known = {option for parameter in ui.params for option in (*parameter.opts, *parameter.secondary_opts)}
    assert {word for word in command if word.startswith("--")} | {"--namespace"} <= known
