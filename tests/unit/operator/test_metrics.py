from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trimtab.fabric.metrics import Metrics
from trimtab.kube.bounded_response import OWN_SERVER
from trimtab.kube.client import KubeClient
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Resource
from trimtab.kube.watch import Change, ChangeType
from trimtab.operator.metrics import OperatorMetrics, PoolSize, Scaling, pool_size, scaling, trainer_steps, without_room
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.controller import Controller


def _item(reason: str | None, *, spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    said = [] if reason is None else [{"type": "Ready", "status": "False", "reason": reason}]
    others = [{"type": "Progressing", "status": "True", "reason": "PodsChanging"}]
    return {"spec": spec or {}, "status": {"conditions": [*others, *said], **status}}


@pytest.mark.parametrize("reason", ["PodsReady", "PodsNotReady"])
def test_a_pool_at_work_wants_its_replicas(reason: str) -> None:
    pool = _item(reason, spec={"replicas": 4}, readyReplicas=3)
    assert pool_size(pool) == PoolSize(wanted=4, ready=3)


@pytest.mark.parametrize("reason", ["Suspended", "JobEnded", "JobNotFound", "Lost"])
def test_a_pool_at_rest_wants_nothing(reason: str) -> None:
    assert pool_size(_item(reason, spec={"replicas": 4})) == PoolSize(wanted=0, ready=0)


def test_the_autoscalers_decision_is_told_where_there_is_one() -> None:
    decision = {"recommended": 9, "bounded": 7, "current": 6}
    assert scaling({"spec": {}, "status": {"autoscaling": decision}}) == Scaling(recommended=9, bounded=7)
    assert scaling({"spec": {}, "status": {}}) is None
    assert scaling({"spec": {}}) is None
    assert scaling(None) is None


def test_nothing_is_said_of_a_pool_that_nobody_has_looked_at() -> None:
    assert pool_size(_item(None, spec={"replicas": 4})) is None
    assert pool_size({"spec": {"replicas": 4}}) is None
    assert pool_size(None) is None


@pytest.mark.parametrize("reason", ["RanksReady", "RanksNotReady", "Restarting", "BackingOff"])
def test_steps_are_expected_of_a_trainer_that_should_train(reason: str) -> None:
    assert trainer_steps(_item(reason, step=7)) == 7
    assert trainer_steps(_item(reason)) == 0


@pytest.mark.parametrize("reason", ["Completed", "Failed", "Suspended", "JobDeleted", "PolicyNotFound", None])
def test_steps_are_not_expected_of_others(reason: str | None) -> None:
    assert trainer_steps(_item(reason, step=7)) is None
    assert trainer_steps(None) is None


def test_series_go_with_what_they_are_about() -> None:
    metrics = Metrics()
    own = OperatorMetrics(metrics)
    pool = {"namespace": "team", "pool": "math-home"}
    trainer = {"namespace": "team", "trainer": "math-solver"}

    def value(name: str, labels: dict[str, str]) -> float | None:
        return metrics.registry.get_sample_value(f"trimtab_operator_{name}", labels)

    own.pool_size("team", "math-home", PoolSize(wanted=4, ready=3))
    own.trainer_steps("team", "math-solver", 7)
    assert value("pool_replicas", pool) == 4
    assert value("pool_ready_replicas", pool) == 3
    assert value("trainer_steps", trainer) == 7
    for _ in range(2):  # the second time there is nothing left to remove
        own.pool_size("team", "math-home", None)
        own.trainer_steps("team", "math-solver", None)
    assert value("pool_replicas", pool) is None
    assert value("pool_ready_replicas", pool) is None
    assert value("trainer_steps", trainer) is None


async def test_the_controller_follows_what_is_stored() -> None:
    client = cast(KubeClient, SimpleNamespace(limits=OWN_SERVER))  # nothing is asked of a server
    reflectors = {resource: Reflector(client, resource) for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS, PODS)}

    def view(resource: Resource) -> ObjectCache:
        return ObjectCache(resource, {None: reflectors[resource]}, index=lambda item: (), clock=time.monotonic)

    metrics = Metrics()
    own = OperatorMetrics(metrics)
    cluster = SimpleNamespace(
        jobs=view(RLJOBS),
        pools=view(ROLLOUT_POOLS),
        trainers=view(TRAINERS),
        pods=view(PODS),
        remote=SimpleNamespace(listen=lambda pools, **_: None),
        watches=SimpleNamespace(count=0),
        settings=SimpleNamespace(workers=4),
    )
    Controller(cast(Cluster, cluster), own)

    def seen(resource: Resource, item: dict[str, Any], kind: ChangeType, version: str) -> None:
        metadata = {"namespace": "team", "name": "math", "uid": "u", "resourceVersion": version}
        stored = item | {"metadata": metadata, "spec": item["spec"] | {"jobRef": {"name": "math"}}}
        reflectors[resource]._take(Change(type=kind, object=stored))

    def value(name: str, label: str) -> float | None:
        return metrics.registry.get_sample_value(f"trimtab_operator_{name}", {"namespace": "team", label: "math"})

    seen(ROLLOUT_POOLS, _item("PodsNotReady", spec={"replicas": 4}, readyReplicas=3), ChangeType.ADDED, "1")
    seen(TRAINERS, _item("RanksReady", step=7), ChangeType.ADDED, "1")
    assert (value("pool_ready_replicas", "pool"), value("trainer_steps", "trainer")) == (3, 7)
    seen(TRAINERS, _item("Completed", step=9), ChangeType.MODIFIED, "2")
    seen(ROLLOUT_POOLS, _item("JobEnded", spec={"replicas": 4}), ChangeType.DELETED, "2")
    assert (value("pool_ready_replicas", "pool"), value("trainer_steps", "trainer")) == (None, None)


def test_a_job_is_without_room_when_its_condition_says_so() -> None:
    def job(**conditions: str) -> dict[str, object]:
        return {"status": {"conditions": [{"type": name, "status": status} for name, status in conditions.items()]}}

    assert without_room(job(HasRoom="False", Succeeded="Unknown")) is True
    assert without_room(job(HasRoom="True")) is False
    assert without_room(job(HasRoom="Unknown")) is False
    assert without_room(job(HasRoom="False", Succeeded="False")) is None
    assert without_room(job(Succeeded="Unknown")) is None
    assert without_room({"spec": {}}) is None
    assert without_room(None) is None
