"""Who may dial the pods of a job, and whom they may."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.scene import tiny_job
from trimtab.api.job import RLJob
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.operator.pods.network import job_policy, ranks_policy, tracking_policy
from trimtab.operator.settings import JobNetworkSettings

ITEM = {"kind": "RLJob", "metadata": {"namespace": "team", "name": "tiny", "uid": "u"}}
ANYWHERE = [
    {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}},
    {"ipBlock": {"cidr": "::/0", "except": ["fe80::/10"]}},
]


def _egress(
    *, servers: tuple[str, ...] = ("tls://nats.infra.svc:4222",), endpoint: str | None = None, **spec: Any
) -> list[dict[str, Any]]:
    policy = job_policy(
        ITEM,
        RLJob.model_validate(tiny_job(**spec)),
        settings=JobNetworkSettings(egress=({"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]},)),
        nats=NatsSettings(servers=servers),
        object_store=ObjectStoreSettings(bucket="b", region="r", endpoint_url=endpoint),
    )
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["podSelector"] == {"matchLabels": {"rl.trimtab.dev/job": "tiny"}}
    rules: list[dict[str, Any]] = policy["spec"]["egress"]
    assert rules[0] == {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}
    assert rules[-1] == {"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}
    return rules[1:-1]


def _namespace(name: str, port: int) -> dict[str, Any]:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    return {"to": [peer], "ports": [{"port": port, "protocol": "TCP"}]}


def test_the_hub_is_dialled_where_a_model_comes_from_it() -> None:
    model: dict[str, Any] = {"policies": [{"name": "solver", "model": {"uri": "hf://team/small@v1"}}]}
    assert _egress(**model)[1:] == [{"to": ANYWHERE, "ports": [{"port": 443, "protocol": "TCP"}]}] * 2
    mirror = "http://hub.mirrors.svc:8080"
    assert _egress(**model, hub={"endpoint": mirror})[-1] == _namespace("mirrors", 8080)
    assert len(_egress(hub={"endpoint": mirror})) == len(_egress())


def test_servers_in_the_cluster_are_dialled_in_their_namespace_at_their_port() -> None:
    assert _egress(endpoint="https://store.data.svc.cluster.local:8333") == [
        _namespace("infra", 4222),
        _namespace("data", 8333),
    ]


@pytest.mark.parametrize(
    ("endpoint", "peers", "port"),
    [
        (None, ANYWHERE, 443),
        ("https://s3.example.org", ANYWHERE, 443),
        ("http://s3.example.org:9000", ANYWHERE, 9000),
        ("https://192.0.2.7:8333", [{"ipBlock": {"cidr": "192.0.2.7/32"}}], 8333),
        ("https://[2001:db8::7]", [{"ipBlock": {"cidr": "2001:db8::7/128"}}], 443),
    ],
)
def test_servers_outside_are_dialled_at_their_port(endpoint: str | None, peers: list[Any], port: int) -> None:
    assert _egress(endpoint=endpoint)[1] == {"to": peers, "ports": [{"port": port, "protocol": "TCP"}]}


def test_an_engine_that_the_manifest_names_is_dialled() -> None:
    pools = [{"name": "home", "engine": {"name": "openai", "url": "http://vllm.serving.svc:8000/v1"}}]
    assert _egress(pools=pools)[-1] == _namespace("serving", 8000)


def test_ranks_meet_ranks_of_their_own_trainer_only() -> None:
    trainer = {"kind": "Trainer", "metadata": {"namespace": "team", "name": "tiny-solver", "uid": "t"}}
    spec = ranks_policy(trainer, job="tiny")["spec"]
    own = {
        "matchLabels": {
            "rl.trimtab.dev/job": "tiny",
            "rl.trimtab.dev/owner": "tiny-solver",
            "rl.trimtab.dev/role": "trainer",
        }
    }
    assert spec["podSelector"] == own
    assert spec["ingress"] == [{"from": [{"podSelector": own}]}]
    assert spec["egress"] == [{"to": [{"podSelector": own}]}]


def test_the_way_to_the_endpoint_of_a_frozen_policy_is_open() -> None:
    endpoint = {"name": "anthropic", "url": "https://llm.models.svc:8443", "model": "m"}
    policies = [{"name": "solver", "model": {"uri": "/m"}}, {"name": "judge", "frozen": True}]
    engines = [{"policy": "solver"}, {"policy": "judge", "endpoint": endpoint}]
    rules = _egress(
        endpoint="https://store.data.svc:8333", policies=policies, pools=[{"name": "a", "engines": engines}]
    )
    assert rules[-1] == _namespace("models", 8443)


def test_what_writes_to_trackers_alone_dials_them() -> None:
    trackers = [
        {"type": "mlflow", "url": "http://mlflow.lab.svc:5000"},
        {"type": "wandb"},
        {"type": "tensorboard", "folder": "/curves"},
    ]
    typed = RLJob.model_validate(tiny_job(tracking=trackers))
    policy = tracking_policy(ITEM, typed, settings=JobNetworkSettings())
    selector = {"rl.trimtab.dev/job": "tiny", "rl.trimtab.dev/role": "tracking"}
    assert policy["spec"]["podSelector"] == {"matchLabels": selector}
    assert policy["spec"]["ingress"] == []
    assert policy["spec"]["egress"] == [
        _namespace("lab", 5000),
        {"to": ANYWHERE, "ports": [{"port": 443, "protocol": "TCP"}]},
    ]
    assert _egress(tracking=trackers) == _egress(), "not the other pods of the job"
