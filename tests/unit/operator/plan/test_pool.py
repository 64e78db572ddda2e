"""The plan of a pool: its size, whom it lets go, and how a changed template reaches its pods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, said, worker
from trimtab.api.conditions import ConditionType
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.operator.conditions import find, updated
from trimtab.operator.plan.actions import RemovePod, StartPod, StopPod
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.pool import Room, plan_pool, room
from trimtab.operator.plan.reachability import reachable

JOB = job()
OLD = {"revision": "old"}


def planned(fleet: RolloutPool, pods: list[ObservedPod], *, now: float = 1000.0) -> list[str]:
    return said(plan_pool(JOB, fleet, pods, now=now).actions)


def workers(fleet: RolloutPool, *fields: dict[str, Any]) -> list[ObservedPod]:
    return [worker(JOB, fleet, number, **given) for number, given in enumerate(fields)]


@pytest.mark.parametrize(
    ("replicas", "pods", "expected"),
    [
        pytest.param(2, [], ["start local-0", "start local-1"], id="nothing is there"),
        pytest.param(2, [{}, {}], [], id="all is well"),
        pytest.param(3, [{}, {}], ["start local-2"], id="grow"),
        pytest.param(1, [{}, {}], ["stop local-0"], id="shrink: names decide between equals"),
        pytest.param(1, [{}, {"created_at": 5.0}], ["stop local-1"], id="the newest of equals"),
        pytest.param(1, [{"tokens_per_second": 9.0}, {"tokens_per_second": 2.0}], ["stop local-1"], id="the slowest"),
        pytest.param(1, [{"suspect": True, "tokens_per_second": 9.0}, {}], ["stop local-0"], id="suspect before slow"),
        pytest.param(1, [{"suspect": True}, {"ready": False}], ["stop local-1"], id="not ready before suspect"),
        pytest.param(
            1, [{"ready": False}, {"phase": Phase.PENDING, "ready": False}], ["stop local-1"], id="pending before that"
        ),
        pytest.param(
            1,
            [{"phase": Phase.PENDING, "ready": False}, {"phase": Phase.PENDING, "ready": False, "scheduled": False}],
            ["stop local-1"],
            id="unscheduled first of all",
        ),
        pytest.param(1, [{}, {"stopping": True}], [], id="one drains already"),
        pytest.param(2, [{}, {"stopping": True}], ["start local-2"], id="a draining pod still has its name"),
        pytest.param(
            2, [{}, {"phase": Phase.FAILED, "stopping": True}], ["remove local-1", "start local-2"], id="one has ended"
        ),
        pytest.param(0, [{}, {}], ["stop local-0", "stop local-1"], id="to nothing"),
    ],
)
def test_size(replicas: int, pods: list[dict[str, Any]], expected: list[str]) -> None:
    fleet = pool(JOB, replicas=replicas)
    assert planned(fleet, workers(fleet, *pods)) == expected


def test_a_preempted_pod_is_replaced_at_once_and_counted() -> None:
    fleet = pool(JOB, replicas=1)
    gone = worker(JOB, fleet, 0, phase=Phase.FAILED, disrupted=True, created_at=999.0, finished_at=1000.0)
    decided = plan_pool(JOB, fleet, [gone], now=1000.0)
    assert said(decided.actions) == ["remove local-0", "start local-1"]
    assert decided.status.preemptions == 1
    again = plan_pool(JOB, fleet.model_copy(update={"status": decided.status}), [gone], now=1001.0)
    assert again.status.preemptions == 1, "the same pod was counted twice"
    another = replace(gone, name="local-1", uid="another")
    later = plan_pool(JOB, fleet.model_copy(update={"status": again.status}), [another], now=1002.0)
    assert (later.status.preemptions, later.status.preempted) == (2, ("another",))


def test_a_preempted_pod_that_drains_counts_and_one_that_is_spared_does_not() -> None:
    fleet = pool(JOB, replicas=1)
    told = worker(JOB, fleet, 0, disrupted=True)
    assert plan_pool(JOB, fleet, [told], now=1000.0).status.preemptions == 0
    assert plan_pool(JOB, fleet, [replace(told, stopping=True)], now=1000.0).status.preemptions == 1


def test_a_pod_that_ends_at_once_is_not_replaced_at_once() -> None:
    fleet = pool(JOB, replicas=1)
    gone = worker(JOB, fleet, 0, phase=Phase.FAILED, created_at=999.0, finished_at=1000.0, message="no such image")
    waits = plan_pool(JOB, fleet, [gone], now=1000.0)
    assert said(waits.actions) == []
    assert waits.requeue_at == 1009.0
    assert waits.status.last_error is not None
    assert waits.status.last_error.message == "no such image"
    assert said(plan_pool(JOB, fleet, [gone], now=1009.0).actions) == ["remove local-0", "start local-1"]


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    fleet = pool(JOB, replicas=1)
    long = "worker exited with 1: " + "line\n" * 1000 + "ValueError: out of luck"
    gone = worker(JOB, fleet, 0, phase=Phase.FAILED, finished_at=1000.0, message=long)
    error = plan_pool(JOB, fleet, [gone], now=1000.0).status.last_error
    assert error is not None
    assert len(error.message) == 1024
    assert error.message.startswith("worker exited with 1: ")
    assert error.message.endswith("ValueError: out of luck")


@pytest.mark.parametrize(
    ("update", "replicas", "expected"),
    [
        ({"max_unavailable": "25%", "max_surge": 0}, 8, Room(most=8, fewest=6)),
        ({"max_unavailable": "25%", "max_surge": 0}, 3, Room(most=3, fewest=2)),
        ({"max_unavailable": 0, "max_surge": "10%"}, 3, Room(most=4, fewest=3)),
        ({"max_unavailable": 5, "max_surge": 0}, 3, Room(most=3, fewest=0)),
    ],
)
def test_room_for_an_update(update: dict[str, Any], replicas: int, expected: Room) -> None:
    assert room(pool(JOB, update=update).spec.update, replicas=replicas) == expected


@pytest.mark.parametrize(
    ("update", "pods", "expected"),
    [
        pytest.param(
            {"max_unavailable": 1, "max_surge": 0}, [OLD, OLD, OLD], ["stop local-0", "start local-3"], id="one by one"
        ),
        pytest.param(
            {"max_unavailable": 1, "max_surge": 0},
            [{**OLD, "stopping": True}, OLD, OLD, {"ready": False}],
            [],
            id="the floor holds until the new one is ready",
        ),
        pytest.param(
            {"max_unavailable": 1, "max_surge": 0},
            [{**OLD, "stopping": True}, OLD, OLD, {}],
            ["stop local-1", "start local-4"],
            id="the next when it is",
        ),
        pytest.param({"max_unavailable": 0, "max_surge": 1}, [OLD, OLD, OLD], ["start local-3"], id="surge first"),
        pytest.param(
            {"max_unavailable": 0, "max_surge": 1},
            [OLD, OLD, OLD, {}],
            ["stop local-0", "start local-4"],
            id="then let one go",
        ),
        pytest.param(
            {"max_unavailable": 1, "max_surge": 0},
            [{**OLD, "ready": False}, {**OLD, "ready": False}, OLD],
            ["stop local-0", "start local-3"],
            id="those that serve nobody go first",
        ),
        pytest.param(
            {"max_unavailable": 1, "max_surge": 0},
            [{**OLD, "ready": False}, OLD, {"ready": False}],
            [],
            id="one that misses a probe stays until the new one is ready",
        ),
    ],
)  # fmt: skip
def test_a_changed_template_rolls(update: dict[str, int], pods: list[dict[str, Any]], expected: list[str]) -> None:
    fleet = pool(JOB, replicas=3, update=update)
    assert planned(fleet, workers(fleet, *pods)) == expected


def test_at_rest_it_has_no_pods_and_says_why() -> None:
    for of, fleet, reason in (
        (JOB, pool(JOB, suspend=True), "Suspended"),
        (job(suspend=True), pool(JOB), "Suspended"),
        (None, pool(JOB), "JobNotFound"),
    ):
        pods = workers(fleet, {}, {"phase": Phase.FAILED, "stopping": True})
        decided = plan_pool(of, fleet, pods, now=1000.0)
        assert said(decided.actions) == ["remove local-1", "stop local-0"]
        ready = find(decided.status.conditions, ConditionType.READY)
        assert ready is not None
        assert (ready.status, ready.reason) == ("False", reason)
        rested = plan_pool(of, fleet, [], now=1000.0)
        suspended = find(rested.status.conditions, ConditionType.SUSPENDED)
        assert suspended is not None
        assert suspended.status == "True"
        assert rested.actions == ()


def test_status_counts_what_is_there() -> None:
    fleet = pool(JOB, replicas=3)
    pods = workers(fleet, {"tokens_per_second": 5.0}, {"ready": False}, {"stopping": True}, OLD)
    status = plan_pool(JOB, fleet, pods, now=1000.0).status
    assert (status.replicas, status.ready_replicas, status.draining_replicas, status.updated_replicas) == (4, 2, 1, 2)
    assert status.tokens_per_second == 5.0


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    fleet = pool(JOB, replicas=1)
    first = plan_pool(JOB, fleet, [], now=10.0).status
    later = plan_pool(JOB, fleet.model_copy(update={"status": first}), [], now=20.0).status
    assert later == first
    up = fleet.model_copy(update={"status": later})
    ready = find(plan_pool(JOB, up, workers(fleet, {}), now=30.0).status.conditions, ConditionType.READY)
    assert ready is not None
    assert (ready.status, ready.last_transition_time.timestamp()) == ("True", 30.0)


class Cluster:
    """A world that does what it is told; pods come up, drain and disappear when the test says so."""

    def __init__(self) -> None:
        self.pods: dict[str, ObservedPod] = {}
        self.now = 1000.0

    def apply(self, fleet: RolloutPool) -> bool:
        decided = plan_pool(JOB, fleet, list(self.pods.values()), now=self.now)
        again = plan_pool(JOB, fleet, list(self.pods.values()), now=self.now)
        assert decided == again, "the same world, the same plan"
        serving = sum(pod.alive and pod.ready for pod in self.pods.values())
        for action in decided.actions:
            match action:
                case StartPod(pod=pod):
                    assert pod.name not in self.pods, "two pods of a name"
                    self.pods[pod.name] = ObservedPod(
                        name=pod.name,
                        phase=Phase.PENDING,
                        ready=False,
                        scheduled=False,
                        revision=pod.revision,
                        created_at=self.now,
                    )
                case StopPod(name=name):
                    assert self.pods[name].alive, "told to stop twice"
                    self.pods[name] = replace(self.pods[name], stopping=True)
                case RemovePod(name=name):
                    assert self.pods[name].ended, "a pod that runs was removed"
                    del self.pods[name]
        living = [pod for pod in self.pods.values() if pod.alive]
        bounds = room(fleet.spec.update, replicas=fleet.spec.replicas)
        assert len(living) <= bounds.most, "more than the update allows"
        left = sum(pod.ready for pod in living)
        assert left >= min(serving, bounds.fewest) or left >= fleet.spec.replicas, "capacity fell below the floor"
        return bool(decided.actions)


@given(data=st.data())
def test_whatever_happens_bounds_hold_and_it_converges(data: st.DataObject) -> None:
    world = Cluster()
    fleet = pool(JOB, replicas=3)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["scale", "template", "ready", "unready", "gone", "crash", "preempt", "wait"])):
            case "scale":
                fleet = pool(JOB, **fleet.spec.model_dump() | {"replicas": data.draw(st.integers(0, 5))})
            case "template":
                concurrency = data.draw(st.integers(1, 3))
                update = data.draw(
                    st.sampled_from(
                        [
                            {"max_unavailable": 1, "max_surge": 0},
                            {"max_unavailable": 0, "max_surge": 2},
                            {"max_unavailable": "50%", "max_surge": "25%"},
                        ]
                    )
                )
                fleet = pool(JOB, **fleet.spec.model_dump() | {"max_concurrency": concurrency, "update": update})
            case "wait":
                world.now += 20.0
            case event if world.pods:
                name = data.draw(st.sampled_from(sorted(world.pods)))
                world.pods[name] = _after(event, world.pods[name], now=world.now)
        world.apply(fleet)
    for _ in range(60):
        for name, pod in list(world.pods.items()):
            if pod.stopping and not pod.ended:
                world.pods[name] = replace(pod, phase=Phase.SUCCEEDED, finished_at=world.now)
            elif pod.alive:
                world.pods[name] = replace(pod, phase=Phase.RUNNING, scheduled=True, ready=True)
        world.now += 20.0
        world.apply(fleet)
    assert not world.apply(fleet), "left alone, it comes to rest"
    revision = {pod.revision for pod in world.pods.values()}
    assert len(world.pods) == fleet.spec.replicas
    assert len(revision) <= 1


def _after(event: str, pod: ObservedPod, *, now: float) -> ObservedPod:
    if pod.ended:
        return pod
    match event:
        case "ready":
            return replace(pod, phase=Phase.RUNNING, scheduled=True, ready=True)
        case "unready":
            return replace(pod, ready=False)
        case "gone":
            return replace(pod, phase=Phase.SUCCEEDED, finished_at=now) if pod.stopping else pod
        case "crash":
            return replace(pod, phase=Phase.FAILED, finished_at=now, message="boom")
        case _:
            return replace(pod, phase=Phase.FAILED, finished_at=now, disrupted=True)


@pytest.mark.parametrize(("ready_at", "took"), [(130.0, 30), (70.0, 0)], ids=["later", "by a clock that is behind"])
def test_the_time_to_start_is_never_negative(ready_at: float, took: int) -> None:
    fleet = pool(JOB, replicas=1)
    pods = workers(fleet, {"created_at": 100.0, "ready_at": ready_at})
    assert (plan_pool(JOB, fleet, pods, now=1000.0).status.startup_seconds or 0) == took


def test_a_pool_at_home_says_nothing_of_other_clusters() -> None:
    fleet = pool(JOB, replicas=1)
    conditions = updated((), [reachable()], generation=1, now=0.0)
    moved = fleet.model_copy(update={"status": RolloutPoolStatus(conditions=conditions)})
    assert find(plan_pool(JOB, moved, [], now=1000.0).status.conditions, ConditionType.REACHABLE) is None
