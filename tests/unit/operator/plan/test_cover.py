"""Who takes over for pools in lost clusters, how far, and that it is undone exactly."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.remote.lost_pools import ELSEWHERE, LOST_AFTER_S, job_with, pools_of, with_reach
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.operator.plan.actions import PutPool
from trimtab.operator.plan.children import COVERS, recorded_cover, uncovered_replicas
from trimtab.operator.plan.cover import planned_covers
from trimtab.operator.plan.job import Observed, plan_job

LATER = float(LOST_AFTER_S)


_STAGES = {"rollouts": False}


def _pool(name: str, replicas: int, **fields: Any) -> dict[str, Any]:
    return {"name": name, "replicas": replicas, **fields}


def _far(name: str, replicas: int, **fields: Any) -> dict[str, Any]:
    return _pool(name, replicas, cluster=ELSEWHERE, **fields)


@pytest.mark.parametrize(
    ("pools", "lost", "covers"),
    [
        ([_pool("home", 1), _far("far", 3)], [], {}),
        ([_pool("home", 1), _far("far", 3)], ["far"], {"home": {"far": 3}}),
        ([_pool("home", 1, maxReplicas=3), _far("far", 3)], ["far"], {"home": {"far": 2}}),
        ([_pool("home", 3, maxReplicas=3), _far("far", 3)], ["far"], {}),
        ([_pool("home", 1), _far("far", 0)], ["far"], {}),
        (
            [_pool("a", 1, maxReplicas=2), _pool("b", 1), _far("far", 3)],
            ["far"],
            {"a": {"far": 1}, "b": {"far": 2}},
        ),
        ([_pool("a", 1), _pool("b", 1, priority=5), _far("far", 2)], ["far"], {"b": {"far": 2}}),
        ([_pool("a", 1, costPerHour=2), _pool("b", 1, costPerHour=1), _far("far", 2)], ["far"], {"b": {"far": 2}}),
        ([_pool("home", 1), _far("one", 1), _far("two", 2)], ["one", "two"], {"home": {"one": 1, "two": 2}}),
        ([_far("one", 1), _far("two", 2)], ["two"], {"one": {"two": 2}}),
        ([_far("one", 1), _far("two", 2)], ["one", "two"], {}),
        ([_pool("home", 1), _pool("scorers", 1, **_STAGES), _far("far", 2)], ["far"], {"home": {"far": 2}}),
        ([_pool("home", 1), _far("scorers", 2, **_STAGES)], ["scorers"], {}),
    ],
    ids=[
        "nothing is lost", "one pool takes it all", "up to its bound", "a full pool takes nothing", "nothing to cover",
        "what one cannot take another does", "higher priority first", "the cheaper first", "two lost ones",
        "another cluster that is there", "nobody is left", "stages' pools cover nobody", "and nobody covers them",
    ],
)  # fmt: skip
def test_covers(pools: list[dict[str, Any]], lost: list[str], covers: dict[str, dict[str, int]]) -> None:
    of = job_with(*pools)
    found = planned_covers(of, pools_of(of, lost=lost), now=LATER)
    assert {_short(name): {_short(one): n for one, n in cover.items()} for name, cover in found.items()} == covers


def _short(name: str) -> str:
    return name.removeprefix("job-")


def test_nobody_covers_before_the_time_is_over() -> None:
    of = job_with(_pool("home", 1), _far("far", 3))
    assert planned_covers(of, pools_of(of, lost=["far"]), now=LATER - 1) == {}


def test_with_autoscaling_it_is_the_autoscalers_business() -> None:
    of = job_with(_pool("home", 1), _far("far", 3), autoscaling={"mode": "Auto", "maxReplicas": 10})
    assert planned_covers(of, pools_of(of, lost=["far"]), now=LATER) == {}


def test_pools_that_rest_or_leave_or_were_made_by_hand_do_not_cover() -> None:
    of = job_with(_pool("home", 1), _far("far", 3))
    home, far = pools_of(of, lost=["far"])
    resting = home.model_copy(update={"spec": home.spec.model_copy(update={"suspend": True})})
    hand_made = home.model_copy(update={"metadata": home.metadata.model_copy(update={"owner_references": ()})})
    for other in (resting, hand_made):
        assert planned_covers(of, [other, far], now=LATER) == {}


def _after(of: RLJob, pools: list[RolloutPool], *, now: float) -> list[RolloutPool]:
    """The pools once the job's plan is carried out, as the API server keeps them."""
    there = {pool.metadata.name: pool for pool in pools}
    for action in plan_job(of, Observed(pools=pools), now=now).actions:
        if isinstance(action, PutPool):
            before = there[action.pool.metadata.name]
            annotations = before.metadata.annotations | action.pool.metadata.annotations
            metadata = before.metadata.model_copy(update={"annotations": annotations})
            there[before.metadata.name] = before.model_copy(update={"metadata": metadata, "spec": action.pool.spec})
    return list(there.values())


def test_it_is_written_down_stays_and_is_undone() -> None:
    of = job_with(_pool("home", 1), _far("far", 3))
    pools = pools_of(of, lost=["far"])
    home, far = covered = _after(of, pools, now=LATER)
    assert (home.spec.replicas, recorded_cover(home), far.spec.replicas) == (4, {"job-far": 3}, 3)
    assert _after(of, covered, now=LATER + 50) == covered
    # Somebody scales it meanwhile: that is on top.
    home = home.model_copy(update={"spec": home.spec.model_copy(update={"replicas": 6})})
    home, far = _after(of, [home, far], now=LATER + 60)
    assert (home.spec.replicas, uncovered_replicas(home)) == (6, 3)
    home, far = _after(of, [home, with_reach(far, reachable=True)], now=LATER + 70)
    assert (home.spec.replicas, recorded_cover(home)) == (3, {})


def test_a_changed_manifest_counts_beside_the_cover() -> None:
    of = job_with(_pool("home", 1), _far("far", 3))
    covered = _after(of, pools_of(of, lost=["far"]), now=LATER)
    home, _ = _after(job_with(_pool("home", 2), _far("far", 3)), covered, now=LATER)
    assert home.spec.replicas == 5


@pytest.mark.parametrize("written", ["", "[]", "nonsense", '{"far": "3"}', '{"far": -3}'])
def test_what_somebody_else_wrote_is_not_believed(written: str) -> None:
    (home,) = pools_of(job_with(_pool("home", 4)))
    metadata = home.metadata.model_copy(update={"annotations": {COVERS: written}})
    assert uncovered_replicas(home.model_copy(update={"metadata": metadata})) == 4


@st.composite
def _fleets(draw: st.DrawFn) -> tuple[list[dict[str, Any]], list[str]]:
    pools = []
    for number in range(draw(st.integers(1, 5))):
        least = draw(st.integers(0, 3))
        replicas = least + draw(st.integers(0, 5))
        bound = draw(st.none() | st.integers(replicas, replicas + 6))
        fields: dict[str, Any] = {"minReplicas": least, "priority": draw(st.integers(-1, 1))}
        if bound is not None:
            fields["maxReplicas"] = bound
        if draw(st.booleans()):
            fields["cluster"] = ELSEWHERE
        pools.append(_pool(f"p{number}", replicas, **fields))
    elsewhere = [pool["name"] for pool in pools if "cluster" in pool]
    return pools, draw(st.lists(st.sampled_from(elsewhere), unique=True)) if elsewhere else []


@given(_fleets())
def test_lost_capacity_is_restored_as_far_as_bounds_allow_and_undone_exactly(
    fleet: tuple[list[dict[str, Any]], list[str]],
) -> None:
    asked, lost = fleet
    of = job_with(*asked)
    before = pools_of(of, lost=lost)
    after = _after(of, before, now=LATER)
    gone = {f"job-{name}" for name in lost}
    there = [pool for pool in after if pool.metadata.name not in gone]
    for pool in there:
        assert pool.spec.max_replicas is None or pool.spec.replicas <= pool.spec.max_replicas
    missing = sum(pool.spec.replicas for pool in before if pool.metadata.name in gone)
    bounds = [pool.spec.max_replicas for pool in there]
    sizes = {pool.metadata.name: pool.spec.replicas for pool in before}
    room = sum(
        missing if bound is None else bound - sizes[pool.metadata.name]
        for pool, bound in zip(there, bounds, strict=True)
    )
    grown = sum(pool.spec.replicas - sizes[pool.metadata.name] for pool in there)
    assert grown == min(missing, room)
    assert _after(of, after, now=LATER + 1) == after
    back = [pool if pool.spec.cluster is None else with_reach(pool, reachable=True) for pool in after]
    assert {pool.metadata.name: pool.spec.replicas for pool in _after(of, back, now=LATER + 2)} == sizes
