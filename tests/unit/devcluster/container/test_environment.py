from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any

import pytest

from tests.support.devcluster.pods import a_pod
from trimtab.devcluster.container.environment import Source, SourceMissing, Sources, content_of, resolved, sources_of
from trimtab.devcluster.pod.spec import PodFacts, UnknownField

SOURCES = Sources(
    content={
        Source("ConfigMap", "settings"): {"LEVEL": b"debug", "PLAIN": b"from-map", "TRIMTAB_PORT_WEB": b"1"},
        Source("Secret", "credentials"): {"password": b"hush"},
    }
)


def variables(container: dict[str, Any], **overrides: str) -> dict[str, str]:
    pod = a_pod(container)
    facts = PodFacts(pod=pod, node="development", allocatable={"cpu": Decimal(8), "memory": Decimal(1 << 30)})
    return resolved(pod["spec"]["containers"][0], facts=facts, sources=SOURCES, overrides=overrides)


def field(path: str) -> dict[str, Any]:
    return {"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}


def test_later_entries_win_and_may_refer_to_earlier_ones() -> None:
    found = variables(
        {
            "envFrom": [{"configMapRef": {"name": "settings"}}, {"secretRef": {"name": "credentials"}, "prefix": "S_"}],
            "env": [
                {"name": "PLAIN", "value": "own"},
                {"name": "JOINED", "value": "$(PLAIN) $(LEVEL) $(S_password) $(LATER)"},
                {"name": "LATER", "value": "x"},
            ],
        }
    )
    assert found["PLAIN"] == "own"
    assert found["JOINED"] == "own debug hush $(LATER)"


def test_the_node_s_ports_win_over_the_manifest_and_can_be_referred_to() -> None:
    container = {
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "env": [
            {"name": "TRIMTAB_PORT_WEB", "value": "8000"},
            {"name": "URL", "value": "http://127.0.0.1:$(TRIMTAB_PORT_WEB)"},
        ],
    }
    assert variables(container)["URL"] == "http://127.0.0.1:8000"
    found = variables(container, TRIMTAB_PORT_WEB="40001")
    assert (found["TRIMTAB_PORT_WEB"], found["URL"]) == ("40001", "http://127.0.0.1:40001")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "worker-0"),
        ("metadata.namespace", "team"),
        ("metadata.uid", "uid-0"),
        ("metadata.labels['role']", "rollout"),
        ("metadata.labels['absent']", ""),
        ("metadata.annotations['note']", 'say "hi"'),
        ("metadata.annotations", 'note="say \\"hi\\""'),
        ("spec.nodeName", "development"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.0.0.1"),
    ],
)
def test_fields(path: str, value: str) -> None:
    assert variables({"env": [field(path)]})["V"] == value


def test_a_field_that_is_not_known_is_named() -> None:
    with pytest.raises(UnknownField, match=r"spec\.restartPolicy"):
        variables({"env": [field("spec.restartPolicy")]})


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.memory", "1Mi", "512"),
        ("limits.memory", None, "536870912"),
        ("requests.cpu", "1", "2"),
        ("requests.cpu", "1m", "1500"),
        ("limits.cpu", "1", "8"),
    ],
)
def test_resources_are_rounded_up_and_default_to_the_node_s(resource: str, divisor: str | None, value: str) -> None:
    reference = {"resource": resource} | ({"divisor": divisor} if divisor else {})
    container = {
        "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "1500m"}},
        "env": [{"name": "V", "valueFrom": {"resourceFieldRef": reference}}],
    }
    assert variables(container)["V"] == value


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'configmap "none" not found'),
        ({"secretKeyRef": {"name": "credentials", "key": "user"}}, 'secret "credentials" has no key "user"'),
    ],
)
def test_what_is_missing_is_named_unless_it_is_optional(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(SourceMissing, match=message):
        variables({"env": [{"name": "V", "valueFrom": entry}]})
    (reference,) = entry.values()
    optional = {next(iter(entry)): {**reference, "optional": True}}
    assert "V" not in variables({"env": [{"name": "V", "valueFrom": optional}]})


def test_a_missing_optional_map_adds_nothing() -> None:
    assert variables({"envFrom": [{"configMapRef": {"name": "none", "optional": True}}]}) == {}


def test_sources_are_found() -> None:
    container = {
        "envFrom": [{"secretRef": {"name": "a"}}],
        "env": [{"name": "V", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "k"}}}, field("metadata.name")],
    }
    assert sources_of(container) == {Source("Secret", "a"), Source("ConfigMap", "b")}


def test_content_is_decoded() -> None:
    encoded = base64.b64encode(b"\xff\x00").decode()
    assert content_of("Secret", {"data": {"k": encoded}}) == {"k": b"\xff\x00"}
    assert content_of("ConfigMap", {"data": {"k": "v"}, "binaryData": {"b": encoded}}) == {"k": b"v", "b": b"\xff\x00"}
    assert content_of("ConfigMap", {}) == {}
