"""How the chart's own pods run: restricted, bounded, probed, and apart from one another."""

from __future__ import annotations

import pytest

from tests.support.chart.rendering import SETS, named, objects, pod_templates, values_of
from trimtab.fabric.settings import ProbeSettings
from trimtab.operator.settings import AdmissionSettings

_PORT = ProbeSettings().port


@pytest.mark.parametrize("name", SETS)
def test_restricted_with_nothing_to_write_to_but_volumes(name: str) -> None:
    for workload, pod in pod_templates(objects(values_of(name))):
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is (workload in ("trimtab-operator", "trimtab-ui"))
        assert spec["enableServiceLinks"] is False
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}


@pytest.mark.parametrize("name", SETS)
def test_bounded_and_probed(name: str) -> None:
    for _, pod in pod_templates(objects(values_of(name))):
        for container in pod["spec"]["containers"]:
            assert {"cpu", "memory"} <= set(container["resources"]["requests"])
            assert "memory" in container["resources"]["limits"]
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                assert container[probe]["httpGet"]["port"] in ports


def test_operators_wait_for_one_another_and_not_together() -> None:
    entries = objects({})
    deployment = named(entries, "Deployment", "trimtab-operator")
    selector = deployment["spec"]["selector"]["matchLabels"]
    assert deployment["spec"]["replicas"] == 2
    assert selector.items() <= deployment["spec"]["template"]["metadata"]["labels"].items()
    spread = deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]
    assert [constraint["topologyKey"] for constraint in spread] == [
        "kubernetes.io/hostname",
        "topology.kubernetes.io/zone",
    ]
    assert all(constraint["labelSelector"]["matchLabels"] == selector for constraint in spread)
    budget = named(entries, "PodDisruptionBudget", "trimtab-operator")
    assert budget["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": selector}}


def test_the_ports_are_the_operators() -> None:
    entries = objects({})
    (container,) = named(entries, "Deployment", "trimtab-operator")["spec"]["template"]["spec"]["containers"]
    webhook = AdmissionSettings.model_fields["port"].default
    assert container["ports"] == [
        {"name": "metrics", "containerPort": _PORT},
        {"name": "webhook", "containerPort": webhook},
    ]


def test_an_image_is_pinned_by_digest_where_there_is_one() -> None:
    entries = objects(values_of("existing"))
    (container,) = named(entries, "Deployment", "trimtab-operator")["spec"]["template"]["spec"]["containers"]
    assert container["image"].startswith("ghcr.io/trimtab/operator@sha256:")
