"""The plan of a job: what it makes, when it ends, and what its status tells."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import pool, said, trainer
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.api.trainer import Trainer
from trimtab.operator.conditions import Statement, find, updated
from trimtab.operator.plan.actions import PutPool, PutTrainer
from trimtab.operator.plan.durability import Durability
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.job_pods import dataflow_pods
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.progress import JobReport, PolicyReport
from trimtab.operator.plan.room import Room
from trimtab.operator.plan.trainer import COMPLETED, FAILED
from trimtab.operator.plan.troubles import NODE_NOT_READY, Trouble

JOB = job()
LOST_NODE = Trouble(reason=NODE_NOT_READY, message="node n1 is not ready", since=0.0)


def dataflow(of: RLJob = JOB, **fields: Any) -> ObservedPod:
    (pod,) = dataflow_pods(of)
    return ObservedPod(name=pod.name, **{"phase": Phase.RUNNING, "revision": pod.revision, **fields})


def after(of: RLJob, observed: Observed, *, now: float = 0.0) -> RLJob:
    return of.model_copy(update={"status": plan_job(of, observed, now=now).status})


def summary(of: RLJob) -> tuple[str, str, str]:
    assert of.status is not None
    said = find(of.status.conditions, ConditionType.SUCCEEDED)
    assert said is not None
    return said.status, said.reason, said.message


def ended(group: Trainer, reason: str, message: str = "") -> Trainer:
    assert group.status is not None
    ready = Statement(type=ConditionType.READY, holds=False, reason=reason, message=message)
    conditions = updated((), [ready], generation=None, now=0.0)
    return group.model_copy(update={"status": group.status.model_copy(update={"conditions": conditions})})


def serving(fleet: RolloutPool, *, replicas: int) -> RolloutPool:
    return fleet.model_copy(update={"status": RolloutPoolStatus(replicas=replicas, ready_replicas=replicas)})


def test_it_makes_its_children_and_the_dataflow() -> None:
    assert said(plan_job(JOB, Observed(), now=0.0).actions) == ["put job-local", "put job-solver", "start dataflow-0"]
    there = Observed(pools=[pool(JOB)], trainers=[trainer(JOB)], pods=[dataflow()])
    assert said(plan_job(JOB, there, now=0.0).actions) == []


def test_who_scaled_a_pool_is_overruled_only_by_the_manifest() -> None:
    scaled = pool(JOB, replicas=7)
    there = Observed(pools=[scaled], trainers=[trainer(JOB)], pods=[dataflow()])
    assert said(plan_job(JOB, there, now=0.0).actions) == []
    changed = job(pools=[{"name": "local", "replicas": 3}])
    assert [action.pool.spec.replicas for action in _puts(changed, there)] == [3]
    other = job(pools=[{"name": "local", "maxConcurrency": 5}])
    assert [action.pool.spec.replicas for action in _puts(other, there)] == [7]


def _puts(of: RLJob, there: Observed) -> list[PutPool]:
    return [action for action in plan_job(of, there, now=0.0).actions if isinstance(action, PutPool)]


def test_a_pool_that_the_manifest_dropped_goes_and_one_made_by_hand_stays() -> None:
    mine = JOB.model_copy(update={"metadata": JOB.metadata.model_copy(update={"uid": "u"})})
    made = pool(mine)
    dropped = made.model_copy(update={"metadata": made.metadata.model_copy(update={"name": "job-dropped"})})
    by_hand = made.model_copy(
        update={"metadata": made.metadata.model_copy(update={"name": "lent", "owner_references": ()})}
    )
    there = Observed(pools=[made, dropped, by_hand], trainers=[trainer(mine)], pods=[dataflow(mine)])
    assert said(plan_job(mine, there, now=0.0).actions) == ["delete job-dropped"]


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        pytest.param({"phase": Phase.FAILED, "disrupted": True}, ["remove dataflow-0", "start dataflow-0"], id="taken"),
        pytest.param({"stopping": True}, [], id="its name is not free yet"),
        pytest.param({"revision": "old"}, ["stop dataflow-0"], id="its part of the manifest changed"),
        pytest.param({"fell_silent": True, "node": "n1"}, ["replace dataflow-0 of n1"], id="its node has died"),
        pytest.param(
            {"fell_silent": True, "stopping": True, "node": "n1"}, ["replace dataflow-0 of n1"], id="and nobody ends it"
        ),
        pytest.param({"fell_silent": True, "ready": False}, [], id="its kubelet knows"),
        pytest.param({"unheard": True}, [], id="it may be an older version, or take its time"),
        pytest.param(
            {"unheard": True, "ready": False, "node": "n1", "trouble": LOST_NODE},
            ["replace dataflow-0 of n1"],
            id="its node was dead before anybody listened",
        ),
        pytest.param({"ready": False, "trouble": LOST_NODE}, [], id="it goes on, though its node is out of reach"),
    ],
)
def test_the_dataflow_comes_back(pod: dict[str, Any], expected: list[str]) -> None:
    there = Observed(pools=[pool(JOB)], trainers=[trainer(JOB)], pods=[dataflow(**pod)])
    assert said(plan_job(JOB, there, now=0.0).actions) == expected


def test_it_has_succeeded_when_every_policy_is_trained() -> None:
    two = job(policies=2)
    solver, judge = (trainer(two), trainer(two))
    judge = judge.model_copy(
        update={
            "metadata": judge.metadata.model_copy(update={"name": "job-judge"}),
            "spec": judge.spec.model_copy(update={"policy": "judge"}),
        }
    )
    half = after(two, Observed(trainers=[ended(solver, COMPLETED), judge]))
    assert summary(half)[0] == "Unknown"
    whole = Observed(trainers=[ended(solver, COMPLETED), ended(judge, COMPLETED)], pods=[dataflow(two)])
    done = after(two, whole, now=50.0)
    assert summary(done)[:2] == ("True", "PoliciesTrained")
    assert done.status is not None
    assert done.status.completion_time is not None
    assert said(plan_job(done, whole, now=51.0).actions) == ["stop dataflow-0"]
    assert summary(after(done, Observed(), now=99.0)) == summary(done), "the end is final"


def test_a_job_that_has_succeeded_goes_on_when_it_is_to_reach_more() -> None:
    goals = {"goals": JOB.spec.goals}
    completed = ended(trainer(JOB, **goals), COMPLETED)
    done = after(JOB, Observed(trainers=[completed]), now=50.0)
    assert done.status is not None
    assert done.status.goals == JOB.spec.goals
    more = job(maxSteps=2000, ttlSecondsAfterFinished=10).model_copy(update={"status": done.status})
    there = Observed(pools=[pool(more)], trainers=[completed], pods=[])
    plan = plan_job(more, there, now=99.0)
    assert said(plan.actions) == ["start dataflow-0"], "and it is not deleted"
    assert summary(after(more, there, now=99.0))[0] == "Unknown"
    assert plan.status.completion_time is None
    assert plan.status.goals is None
    assert plan.status.start_time == done.status.start_time

    again = after(
        after(more, there, now=99.0), Observed(trainers=[ended(trainer(more, goals=more.spec.goals), COMPLETED)])
    )
    assert summary(again)[0] == "True"
    assert again.status is not None
    assert again.status.goals == more.spec.goals


def test_a_job_that_has_failed_does_not_go_on() -> None:
    failed = after(JOB, Observed(trainers=[ended(trainer(JOB), FAILED, "boom")]), now=50.0)
    more = job(maxSteps=2000).model_copy(update={"status": failed.status})
    assert summary(after(more, Observed(), now=99.0)) == summary(failed)


def test_a_frozen_policy_has_no_trainer_and_no_part_in_the_end_or_the_status() -> None:
    frozen = job(policies=[{"name": "solver"}, {"name": "judge", "frozen": True, "model": {"uri": "model"}}])
    made = [action for action in plan_job(frozen, Observed(), now=0.0).actions if isinstance(action, PutTrainer)]
    assert [action.trainer.spec.policy for action in made] == ["solver"]
    done = after(frozen, Observed(trainers=[ended(trainer(frozen), COMPLETED)], pods=[dataflow(frozen)]), now=50.0)
    assert summary(done)[:2] == ("True", "PoliciesTrained")
    assert done.status is not None
    assert [policy.name for policy in done.status.policies] == ["solver"]


@pytest.mark.parametrize(
    ("observed", "expected"),
    [
        pytest.param(
            Observed(trainers=[ended(trainer(JOB), FAILED, "out of luck")]),
            ("False", "TrainerFailed", "job-solver: out of luck"),
            id="a trainer gave up",
        ),
        pytest.param(
            Observed(pods=[dataflow(misconfigured=True, message="prompts.jsonl, line 3: not JSON")]),
            ("False", "Misconfigured", "job-dataflow-0: prompts.jsonl, line 3: not JSON"),
            id="misconfigured",
        ),
    ],
)
def test_it_has_failed_and_says_why(observed: Observed, expected: tuple[str, str, str]) -> None:
    assert summary(after(JOB, observed)) == expected


def test_the_dataflow_goes_last() -> None:
    asleep = job(suspend=True)
    busy = Observed(pools=[serving(pool(JOB), replicas=2)], trainers=[trainer(JOB)], pods=[dataflow()])
    assert said(plan_job(asleep, busy, now=0.0).actions) == []
    drained = Observed(pools=[serving(pool(JOB), replicas=0)], trainers=[trainer(JOB)], pods=[dataflow()])
    assert said(plan_job(asleep, drained, now=0.0).actions) == ["stop dataflow-0"]
    assert summary(after(asleep, drained)) == ("Unknown", "Suspended", "")


def test_its_time_after_the_end_is_bounded() -> None:
    brief = job(ttlSecondsAfterFinished=60)
    done = after(brief, Observed(trainers=[ended(trainer(brief), COMPLETED)]), now=100.0)
    waits = plan_job(done, Observed(), now=159.0)
    assert (said(waits.actions), waits.requeue_at) == ([], 160.0)
    assert said(plan_job(done, Observed(), now=160.0).actions) == ["delete the job"]


def test_pods_are_stopped_though_the_jobs_time_is_over_before_they_have_wound_down() -> None:
    brief = job(ttlSecondsAfterFinished=0)
    completed = [ended(trainer(brief), COMPLETED)]
    done = after(brief, Observed(trainers=completed), now=100.0)
    drains = Observed(pools=[serving(pool(brief), replicas=1)], trainers=completed, pods=[dataflow(brief)])
    assert said(plan_job(done, drains, now=100.0).actions) == ["delete the job"]
    leaving = done.model_copy(
        update={"metadata": done.metadata.model_copy(update={"deletion_timestamp": datetime.fromtimestamp(101.0, UTC)})}
    )
    assert said(plan_job(leaving, drains, now=101.0).actions) == []
    drained = Observed(pools=[serving(pool(brief), replicas=0)], trainers=completed, pods=[dataflow(brief)])
    assert said(plan_job(leaving, drained, now=102.0).actions) == ["stop dataflow-0"]


def test_what_is_not_supported_is_refused_by_name_and_makes_nothing() -> None:
    asks = job(data={"shards": 2})
    decided = plan_job(asks, Observed(), now=0.0)
    accepted = find(decided.status.conditions, ConditionType.ACCEPTED)
    assert decided.actions == ()
    assert accepted is not None
    assert (accepted.status, accepted.message) == ("False", "this version does not do spec.data.shards")


def test_status_tells_how_it_is_doing_and_keeps_it_when_nothing_is_heard() -> None:
    report = PolicyReport(step=12, version=11, reward=0.5, waiting_fraction=0.2, staleness=1.5)
    fleet = serving(pool(JOB), replicas=2)
    ready = ended(trainer(JOB), "RanksReady").model_copy()
    there = Observed(pools=[fleet], trainers=[ready], report=JobReport(policies={"solver": report}))
    told = after(JOB, there)
    assert told.status is not None
    status = told.status
    assert (status.step, status.reward, status.waiting_fraction, status.staleness) == (12, 0.5, 0.2, 1.5)
    assert (status.replicas, status.ready_replicas) == (2, 2)
    assert (status.policies[0].version, status.pools[0].name) == (11, "local")
    silent = after(told, Observed(pools=[fleet], trainers=[ready]))
    assert silent.status is not None
    assert silent.status.policies == status.policies


def test_storage_that_is_full_is_told_in_a_condition_and_the_summary() -> None:
    there = Observed(
        pools=[serving(pool(JOB), replicas=1)],
        pods=[dataflow()],
        report=JobReport(room=Room(reason="StreamFull", shortage="full")),
    )
    full = after(JOB, there)
    assert full.status is not None
    room = find(full.status.conditions, ConditionType.HAS_ROOM)
    assert room is not None
    assert (room.status, room.reason, room.message) == ("False", "StreamFull", "full")
    assert summary(full) == ("Unknown", "WaitingForRoom", "full")
    healed = after(full, replace(there, report=JobReport(room=Room())))
    assert healed.status is not None
    room = find(healed.status.conditions, ConditionType.HAS_ROOM)
    assert room is not None
    assert (room.status, room.reason) == ("True", "Room")
    assert find(plan_job(JOB, Observed(), now=0.0).status.conditions, ConditionType.HAS_ROOM) is None


def test_what_a_loss_of_power_would_cost_is_a_condition() -> None:
    told = after(JOB, Observed(pods=[dataflow()], report=JobReport(durability=Durability(replicas=1, sync=5.0))))
    assert told.status is not None
    durable = find(told.status.conditions, ConditionType.DURABLE)
    assert durable is not None
    assert (durable.status, durable.reason) == ("False", "SyncedLater")


def test_streams_that_the_server_does_not_take_are_told() -> None:
    there = Observed(pods=[dataflow()], report=JobReport(streams_refused="spec.streams.replicas: no"))
    assert summary(after(JOB, there)) == ("Unknown", "WaitingForStreams", "spec.streams.replicas: no")
