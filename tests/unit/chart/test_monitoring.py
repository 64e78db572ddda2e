"""What Prometheus is told to look at is what is there."""

from __future__ import annotations

import json

import pytest
import yaml

from monitoring.catalogue import ROOT
from monitoring.queries import TARGET_LABELS
from tests.support.chart.rendering import named, objects, values_of
from trimtab.api import labels


def test_the_service_monitor_finds_the_operators_service() -> None:
    entries = objects(values_of("remote"))
    monitor = named(entries, "ServiceMonitor", "trimtab-operator")
    service = named(entries, "Service", "trimtab-operator")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_the_pod_monitor_finds_pods_of_jobs() -> None:
    monitor = named(objects(values_of("remote")), "PodMonitor", "trimtab-jobs")["spec"]
    assert monitor["selector"] == {"matchExpressions": [{"key": labels.JOB, "operator": "Exists"}]}
    assert monitor["namespaceSelector"] == {"any": True}
    (endpoint,) = monitor["podMetricsEndpoints"]
    told = {rule["sourceLabels"][0]: rule["targetLabel"] for rule in endpoint["relabelings"]}
    known = (labels.JOB, labels.ROLE, labels.POOL, labels.POLICY)
    assert set(told) == {f"__meta_kubernetes_pod_label_{name.replace('.', '_').replace('/', '_')}" for name in known}


def test_pod_monitor_of_some_namespaces() -> None:
    values = values_of("namespaced") | {"monitoring": {"podMonitor": {"enabled": True}}}
    monitor = named(objects(values), "PodMonitor", "trimtab-jobs")["spec"]
    assert monitor["namespaceSelector"] == {"matchNames": ["team-a", "team-b"]}


def test_alerts_are_taken_as_they_are_but_for_where_runbooks_are() -> None:
    """Prometheus has double braces of its own, which Helm must not read."""
    rule = named(objects(values_of("remote")), "PrometheusRule", "trimtab")
    source = (ROOT / "monitoring/alerts.yaml").read_text(encoding="utf-8")
    moved = source.replace("https://trimtab.dev/docs/operations/", "https://wiki.example.org/trimtab/")
    assert moved.count("https://wiki.example.org/trimtab/") == source.count("runbook_url:") > 0
    assert rule["spec"] == yaml.safe_load(moved)


def test_dashboards_are_found_by_grafanas_sidecar() -> None:
    boards = named(objects(values_of("remote")), "ConfigMap", "trimtab-dashboards")
    assert boards["metadata"]["labels"]["grafana_dashboard"] == "1"
    sources = (ROOT / "monitoring/dashboards").glob("*.json")
    assert {name: json.loads(text) for name, text in boards["data"].items()} == {
        f"trimtab-{path.name}": json.loads(path.read_text(encoding="utf-8")) for path in sources
    }


@pytest.mark.parametrize(
    ("kind", "name", "part"),
    [("PodMonitor", "trimtab-jobs", "rollout"), ("ServiceMonitor", "trimtab-operator", "operator")],
)
def test_the_scrape_adds_the_labels_that_alerts_ask_for(kind: str, name: str, part: str) -> None:
    spec = named(objects(values_of("remote")), kind, name)["spec"]
    (endpoint,) = spec.get("podMetricsEndpoints") or spec["endpoints"]
    added = {rule["targetLabel"] for rule in endpoint.get("relabelings", [])}
    assert {label for label in TARGET_LABELS[part] if label.startswith("rl_")} <= added
    # A pool's namespace is a label of the operator's own metrics, which Prometheus would otherwise rename.
    assert endpoint.get("honorLabels", False) is (part == "operator")
