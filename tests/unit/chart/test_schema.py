"""A wrong value is refused before anything is installed, and by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import helm_python
import pytest

from tests.support.chart.rendering import CHART, SETS, objects, values_of

_ELSEWHERE = {"nats": {"evaluation": {"enabled": False}, "existing": {"servers": ["tls://nats:4222"]}}}

REFUSED = {
    "unknown section": ({"nast": {}}, "additional properties 'nast'"),
    "unknown field": ({"operator": {"replica": 3}}, "additional properties 'replica'"),
    "number as text": ({"operator": {"replicas": "two"}}, "/operator/replicas"),
    "no operator": ({"operator": {"replicas": 0}}, "/operator/replicas"),
    "no disruption ever": ({"operator": {"disruptionBudget": {"maxUnavailable": 0}}}, "/maxUnavailable"),
    "log level": ({"operator": {"logLevel": "loud"}}, "/operator/logLevel"),
    "workers beyond the operator's bound": ({"operator": {"workers": 257}}, "/operator/workers"),
    "lease too short": ({"operator": {"leaseDurationSeconds": 2}}, "/operator/leaseDurationSeconds"),
    "pull policy": ({"operator": {"image": {"pullPolicy": "Sometimes"}}}, "/operator/image/pullPolicy"),
    "short digest": ({"jobs": {"images": {"rollout": {"digest": "sha256:12"}}}}, "/jobs/images/rollout/digest"),
    "namespace": ({"namespaces": ["Team_A"]}, "/namespaces/0"),
    "namespace twice": ({"namespaces": ["a", "a"]}, "/namespaces"),
    "namespaces as text": ({"namespaces": "a,b"}, "/namespaces"),
    "password in values": ({"nats": {"existing": {"password": "hunter2"}}}, "additional properties 'password'"),
    "password in an address": ({"nats": {"existing": {"servers": ["nats://me:pass@nats:4222"]}}}, "/servers/0"),
    "trust without saying so": ({"nats": {"existing": {"sharedAccount": "yes"}}}, "/sharedAccount"),
    "address without scheme": ({"nats": {"existing": {"servers": ["nats:4222"]}}}, "/servers/0"),
    "endpoint without scheme": ({"objectStore": {"existing": {"endpoint": "s3:9000"}}}, "/endpoint"),
    "bucket": ({"objectStore": {"bucket": "Models"}}, "/objectStore/bucket"),
    "two NATS servers, of which one alone decides nothing": (
        {"nats": {"evaluation": {"replicas": 2}}},
        "/nats/evaluation/replicas",
    ),
    "decimal size": ({"nats": {"evaluation": {"storage": {"size": "10GB"}}}}, "/storage/size"),
    "quantity": ({"operator": {"resources": {"limits": {"memory": "lots"}}}}, "/limits/memory"),
    "port": ({"networkPolicy": {"operatorEgress": {"ports": [70000]}}}, "/operatorEgress/ports/0"),
    "address range": ({"networkPolicy": {"operatorEgress": {"cidrs": ["10.0.0.0"]}}}, "/cidrs/0"),
    "interval": ({"monitoring": {"podMonitor": {"interval": "often"}}}, "/podMonitor/interval"),
    "spread without a key": ({"operator": {"topologySpreadConstraints": [{"maxSkew": 1}]}}, "topologyKey"),
}

CONTRADICTIONS = {
    "two NATS": ({"nats": {"existing": {"servers": ["tls://nats:4222"]}}}, "nats.evaluation.enabled to false"),
    "no NATS": ({"nats": {"evaluation": {"enabled": False}}}, "nats.existing.servers: needed"),
    "two stores": (
        {"objectStore": {"existing": {"endpoint": "https://s3"}}},
        "objectStore.evaluation.enabled to false",
    ),
    "key of no Secret": (
        {"nats": {**_ELSEWHERE["nats"], "existing": {"servers": ["tls://nats:4222"], "secret": {"user": "user"}}}},
        "nats.existing.secret.name: needed",
    ),
    "Secret without keys": (
        {"nats": {**_ELSEWHERE["nats"], "existing": {"servers": ["tls://nats:4222"], "secret": {"name": "user"}}}},
        "nats.existing.secret: name the keys",
    ),
    "account and user": (
        {
            "nats": {
                **_ELSEWHERE["nats"],
                "existing": {
                    "servers": ["tls://nats:4222"],
                    "secret": {"name": "nats", "user": "user", "operatorSeed": "seed"},
                },
            }
        },
        "leave user, password and credentials empty",
    ),
    "one account for all, without saying so": (
        {"nats": {**_ELSEWHERE["nats"], "existing": {"servers": ["tls://nats:4222"]}}},
        "set nats.existing.sharedAccount to all-pods-trust-one-another",
    ),
    "accounts of which the server is not told": (
        {
            "nats": {
                **_ELSEWHERE["nats"],
                "existing": {"servers": ["tls://nats:4222"], "secret": {"name": "nats", "operatorSeed": "seed"}},
            }
        },
        "nats.existing.secret.systemCredentials: needed",
    ),
    "accounts that nothing signs": (
        {
            "nats": {
                **_ELSEWHERE["nats"],
                "existing": {"servers": ["tls://nats:4222"], "secret": {"name": "nats", "systemCredentials": "c"}},
            }
        },
        "nats.existing.secret.operatorSeed: needed",
    ),
    "one account and one for each": (
        {"nats": {"existing": {"sharedAccount": "all-pods-trust-one-another"}}},
        "nats.existing.sharedAccount: jobs have accounts of their own",
    ),
    "remote user where users are made": (
        {"remote": {"nats": {"servers": ["tls://nats:4222"], "secret": {"name": "guest", "user": "user"}}}},
        "remote.nats.secret: the operator makes the users",
    ),
    "remote user without servers": (
        {
            "nats": {
                **_ELSEWHERE["nats"],
                "existing": {"servers": ["tls://nats:4222"], "sharedAccount": "all-pods-trust-one-another"},
            },
            "remote": {"nats": {"secret": {"name": "guest", "user": "user"}}},
        },
        "remote.nats.servers: needed",
    ),
    "more copies than servers": (
        {"jobs": {"streams": {"replicas": 3}}},
        "jobs.streams.replicas: 3 copies need as many servers; set nats.evaluation.replicas to 3",
    ),
    "no service account": ({"serviceAccount": {"create": False}}, "serviceAccount.name: needed"),
}


@pytest.mark.parametrize(("values", "told"), REFUSED.values(), ids=REFUSED)
def test_refused_by_name(values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm_python.HelmValuesError) as refusal:
        objects(values)
    assert told in str(refusal.value)


@pytest.mark.parametrize(("values", "told"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_refused_with_the_fix(values: dict[str, Any], told: str) -> None:
    with pytest.raises(helm_python.HelmRenderError) as refusal:
        objects(values)
    assert told in str(refusal.value)


def test_every_object_in_the_schema_is_closed() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    open_ones = [path for path, part in _parts(schema, "") if "properties" in part and _is_open(part)]
    assert not open_ones


def test_every_value_is_known_to_the_schema_and_has_a_default() -> None:
    """Both ways: a value that only one of them has would be either refused or undocumented."""
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = helm_python.Chart.load(CHART).values
    assert set(_described(schema, schema, "")) - {"global"} == set(_given(schema, schema, defaults, ""))


@pytest.mark.parametrize("name", SETS)
def test_our_value_sets_are_accepted(name: str) -> None:
    helm_python.Chart.load(CHART).validate_schema(values_of(name))


def _is_open(part: dict[str, Any]) -> bool:
    return part.get("additionalProperties") is not False


def _parts(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield path, part
        for key, inner in part.items():
            yield from _parts(inner, f"{path}/{key}")


def _resolved(schema: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    reference = part.get("$ref")
    return schema["definitions"][reference.rpartition("/")[2]] if reference else part


def _described(schema: dict[str, Any], part: dict[str, Any], path: str) -> Iterator[str]:
    properties = _resolved(schema, part).get("properties")
    # A selector is Kubernetes' own, whose fields exclude one another.
    if properties is None or part.get("$ref") == "#/definitions/selector":
        yield path
        return
    for name, inner in properties.items():
        yield from _described(schema, inner, f"{path}.{name}".lstrip("."))


def _given(schema: dict[str, Any], part: dict[str, Any], values: Any, path: str) -> Iterator[str]:
    properties = _resolved(schema, part).get("properties")
    if properties is None or part.get("$ref") == "#/definitions/selector":
        yield path
        return
    for name, value in values.items():
        yield from _given(schema, properties[name], value, f"{path}.{name}".lstrip("."))
