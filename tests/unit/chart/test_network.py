"""Who may talk to whom, and that the table in docs/install.md says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import yaml

from tests.support.chart.rendering import (
    RELEASE,
    ROOT,
    Object,
    name_of,
    named,
    objects,
    of_kind,
    pod_templates,
    values_of,
)
from tests.support.operator.scene import tiny_job
from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.operator.pods.network import job_policy, ranks_policy
from trimtab.operator.settings import JobNetworkSettings

_OPERATOR_PODS = {
    "app.kubernetes.io/name": "trimtab",
    "app.kubernetes.io/instance": RELEASE,
    "app.kubernetes.io/component": "operator",
}
_JOB_PODS = {"matchExpressions": [{"key": labels.JOB, "operator": "Exists"}]}


def _ports(rules: list[Object]) -> list[list[int]]:
    return [[port["port"] for port in rule.get("ports", [])] for rule in rules]


def test_every_pod_of_ours_has_a_policy_both_ways() -> None:
    entries = objects({})
    for workload, pod in pod_templates(entries):
        policy = named(entries, "NetworkPolicy", workload)["spec"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert policy["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_operator() -> None:
    policy = named(objects({}), "NetworkPolicy", "trimtab-operator")["spec"]
    assert _ports(policy["ingress"]) == [[9464], [9443]]
    assert policy["ingress"][0]["from"] == [
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}, "podSelector": {}}
    ]
    assert _ports(policy["egress"]) == [[53, 53], [443, 6443], [4222], [8333]]


def test_operator_reaches_existing_servers_by_their_ports() -> None:
    policy = named(objects(values_of("own_namespace")), "NetworkPolicy", "trimtab-operator")["spec"]
    assert _ports(policy["egress"]) == [[53, 53], [443, 6443], [4222, 4443]]


@pytest.mark.parametrize(
    ("existing", "port"),
    [
        ({"sts": {"roleArn": "arn:aws:iam::1:role/jobs"}}, 443),
        ({"sts": {"roleArn": "arn:aws:iam::1:role/jobs"}, "endpoint": "http://minio.storage.svc:9000"}, 9000),
        ({"sts": {"roleArn": "arn:aws:iam::1:role/jobs", "endpoint": "https://sts.example.org:8443"}}, 8443),
    ],
)
def test_operator_reaches_the_sts_of_an_existing_store(existing: Object, port: int) -> None:
    values = {"objectStore": {"evaluation": {"enabled": False}, "existing": existing}}
    policy = named(objects(values), "NetworkPolicy", "trimtab-operator")["spec"]
    assert _ports(policy["egress"])[-1] == [port]


def test_evaluation_servers_answer_jobs_and_the_operator_and_dial_no_one() -> None:
    entries = objects(values_of("namespaced"))
    jobs = {
        "podSelector": _JOB_PODS,
        "namespaceSelector": {
            "matchExpressions": [
                {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["team-a", "team-b"]}
            ]
        },
    }
    nats = named(entries, "NetworkPolicy", "trimtab-nats")["spec"]
    store = named(entries, "NetworkPolicy", "trimtab-object-store")["spec"]
    assert [_ports(nats["ingress"]), _ports(store["ingress"])] == [[[4222]], [[8333]]]
    for policy in (nats, store):
        assert "Egress" in policy["policyTypes"]
        assert "egress" not in policy
    operator = {"podSelector": {"matchLabels": _OPERATOR_PODS}}
    for policy in (nats, store):
        assert policy["ingress"][0]["from"] == [operator, jobs]


def test_policies_of_jobs_are_the_operators_and_as_the_values_say() -> None:
    settings = _settings(values_of("existing"))
    assert settings["job_network"] == {
        "dns_ports": [5353],
        "scrapers": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}},
            "podSelector": {},
        },
        "server_cidrs": ["10.0.0.0/8"],
        "egress": [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}], "ports": [{"port": 443, "protocol": "TCP"}]}],
    }
    assert "job_network" not in _settings({"networkPolicy": {"jobs": {"enabled": False}}})
    assert "job_network" not in _settings({"networkPolicy": {"enabled": False}})


def _settings(values: Object) -> Object:
    text = named(objects(values), "ConfigMap", "trimtab-operator")["data"]["settings.yaml"]
    read: Object = yaml.safe_load(text)
    return read


def _policies_of_a_job() -> list[Object]:
    """As the operator makes them with the chart's own servers, of a job whose model is on a hub."""
    settings = _settings({})
    solver = RLJob.model_validate(tiny_job(policies=[{"name": "solver", "model": {"uri": "hf://team/small@v1"}}]))
    item = {"kind": "RLJob", "metadata": {"namespace": "team", "name": "job", "uid": "u"}}
    pods = job_policy(
        item,
        solver,
        settings=JobNetworkSettings.model_validate(settings["job_network"]),
        nats=NatsSettings(servers=tuple(settings["nats"]["servers"])),
        object_store=ObjectStoreSettings(bucket="b", region="r", endpoint_url=settings["object_store"]["endpoint_url"]),
    )
    return [pods, ranks_policy({**item, "kind": "Trainer"}, job="job")]


def test_the_table_in_the_documentation_has_every_flow() -> None:
    """By policy, direction and port; its first row is the heading."""
    text = (ROOT / "docs/install.md").read_text(encoding="utf-8")
    section = text.partition("## Who talks to whom")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line[:1] == "|"]
    told = {(row[3], row[2]) for row in rows[2:] if row[3] != "none"}
    assert told == {*_flows(objects({"ui": {"enabled": True}})), *_flows(_policies_of_a_job())}


def _flows(entries: list[Object]) -> Iterator[tuple[str, str]]:
    for policy in of_kind(entries, "NetworkPolicy"):
        name = name_of(policy).removeprefix(f"{RELEASE}-").replace("job-", "JOB-")
        for direction in ("ingress", "egress"):
            for rule in policy["spec"].get(direction, []):
                ports = sorted({port["port"] for port in rule.get("ports", [])})
                yield f"`{name}` {direction}", ", ".join(map(str, ports)) or "any"
