"""The plan of a trainer: ranks live and die together, and a restart costs what its cause is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import rank, said, trainer
from trimtab.api.job import RLJob
from trimtab.api.trainer import Trainer
from trimtab.operator.conditions import moment
from trimtab.operator.plan.actions import ReleasePod, RemovePod, StartPod, StopPod
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.restart_budget import backoff_s
from trimtab.operator.plan.trainer import COMPLETED, FAILED, outcome, plan_trainer

FAILURE_POLICY = {"maxRestarts": 2, "backoffSeconds": 4, "maxBackoffSeconds": 6}
PENDING, RUNNING, SUCCEEDED, FAIL = Phase.PENDING, Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED


def two_ranks(**fields: Any) -> RLJob:
    return job(trainer={"replicas": 2}, **{"failurePolicy": FAILURE_POLICY, **fields})


JOB = two_ranks()


@pytest.mark.parametrize(
    ("status", "pods", "now", "expected"),
    [
        pytest.param({}, [], 0.0, ["start solver-0 1", "start solver-1 1"], id="nothing is there"),
        pytest.param({"attempt": 4}, [], 0.0, ["start solver-0 5", "start solver-1 5"], id="an attempt is used once"),
        pytest.param(
            {"attempt": 4, "started_attempt": 3}, [], 0.0, ["start solver-0 4", "start solver-1 4"],
            id="one whose pods were refused is not used up",
        ),
        pytest.param(
            {"attempt": 4, "started_attempt": 4}, [], 0.0, ["start solver-0 5", "start solver-1 5"],
            id="one whose pods ran and are gone is",
        ),
        pytest.param(
            {"attempt": 1, "started_attempt": 0}, [(PENDING, {"gated": True}), (PENDING, {"gated": True})], 0.0,
            ["release solver-0", "release solver-1"], id="all are there and may run",
        ),
        pytest.param(
            {"attempt": 1, "started_attempt": 1}, [(RUNNING, {}), (PENDING, {"gated": True})], 0.0,
            ["release solver-1"], id="an operator died between two releases",
        ),
        pytest.param(
            {"attempt": 1, "started_attempt": 0}, [(PENDING, {"gated": True})], 0.0, ["start solver-1 1"],
            id="an operator died between two ranks",
        ),
        pytest.param(
            {"attempt": 1, "started_attempt": 0}, [(PENDING, {"gated": True, "revision": "old"})], 0.0,
            ["stop solver-0"], id="the manifest has changed before all were there",
        ),
        pytest.param({"attempt": 1}, [(RUNNING, {}), (RUNNING, {})], 0.0, [], id="all is well"),
        pytest.param({"attempt": 1}, [(RUNNING, {}), (FAIL, {})], 0.0, ["stop solver-0"], id="one fails, all stop"),
        pytest.param(
            {"attempt": 1, "judged_attempt": 1, "restarts_counted": 1},
            [(RUNNING, {"stopping": True}), (FAIL, {})], 0.0, [], id="it is stopping",
        ),
        pytest.param(
            {"attempt": 1, "judged_attempt": 1, "restarts_counted": 1},
            [(FAIL, {"stopping": True}), (FAIL, {})], 1.9, [], id="backoff",
        ),
        pytest.param(
            {"attempt": 1, "judged_attempt": 1, "restarts_counted": 1},
            [(FAIL, {"stopping": True}), (FAIL, {})], 4.0, ["remove solver-0", "remove solver-1"], id="and away",
        ),
        pytest.param({"attempt": 1}, [(RUNNING, {})], 0.0, ["stop solver-0"], id="a rank is missing"),
        pytest.param({"attempt": 1}, [(SUCCEEDED, {}), (RUNNING, {})], 0.0, [], id="one is done first"),
        pytest.param(
            {"attempt": 1}, [(SUCCEEDED, {"stopping": True}), (SUCCEEDED, {"stopping": True})], 0.0,
            ["remove solver-0", "remove solver-1"], id="stopped by us is not done, and costs no backoff",
        ),
        pytest.param(
            {"attempt": 2}, [(RUNNING, {"attempt": 1}), (RUNNING, {})], 0.0, ["stop solver-0", "stop solver-1"],
            id="leftovers of an older attempt",
        ),
        pytest.param(
            {"attempt": 1}, [(RUNNING, {"revision": "old"}), (RUNNING, {"revision": "old"})], 0.0,
            ["stop solver-0", "stop solver-1"], id="a changed template restarts all",
        ),
    ],
)  # fmt: skip
def test_decisions(status: dict[str, int], pods: list[tuple[Phase, Any]], now: float, expected: list[str]) -> None:
    group = trainer(JOB, **status)
    observed = [rank(JOB, group, number, phase, **fields) for number, (phase, fields) in enumerate(pods)]
    assert said(plan_trainer(JOB, group, observed, now=now).actions) == expected


def after(of: RLJob, group: Trainer, pods: list[ObservedPod], *, now: float = 0.0) -> Trainer:
    return group.model_copy(update={"status": plan_trainer(of, group, pods, now=now).status})


def test_a_failure_is_judged_once() -> None:
    group = trainer(JOB, attempt=1)
    pods = [rank(JOB, group, 0), rank(JOB, group, 1, FAIL)]
    judged = after(JOB, group, pods)
    assert judged.status is not None
    assert (judged.status.restarts_counted, judged.status.judged_attempt) == (1, 1)
    assert after(JOB, judged, pods) == judged


def test_a_group_whose_pods_are_never_made_is_no_restart_and_changes_nothing() -> None:
    first = after(JOB, trainer(JOB), [])
    assert first.status is not None
    assert (first.status.attempt, first.status.started_attempt, first.status.restarts) == (1, 0, 0)
    refused = first
    for look in range(1, 1000):
        refused = after(JOB, refused, [], now=float(look))
    assert refused == first


def test_ranks_run_only_when_it_is_written_that_they_may() -> None:
    group = trainer(JOB, attempt=1, started_attempt=0)
    gated = [rank(JOB, group, number, PENDING, gated=True) for number in range(2)]
    assert after(JOB, group, gated[:1]).status.started_attempt == 0  # type: ignore[union-attr]
    released = after(JOB, group, gated)
    assert released.status is not None
    assert released.status.started_attempt == 1
    gone = after(JOB, released, [])
    assert gone.status is not None
    assert (gone.status.attempt, gone.status.restarts) == (2, 1)


@pytest.mark.parametrize(
    ("fields", "policy", "counted"),
    [
        pytest.param({"disrupted": True}, {}, 0, id="preemption is free"),
        pytest.param({"exit_code": 3}, {"onExit": [{"exitCodes": [3], "action": "RestartFree"}]}, 0, id="free by rule"),
        pytest.param({"exit_code": 4}, {"onExit": [{"exitCodes": [3], "action": "RestartFree"}]}, 1, id="no rule fits"),
    ],
)
def test_what_counts(fields: dict[str, Any], policy: dict[str, Any], counted: int) -> None:
    of = two_ranks(failurePolicy=FAILURE_POLICY | policy)
    group = trainer(of, attempt=1)
    judged = after(of, group, [rank(of, group, 0, RUNNING), rank(of, group, 1, FAIL, **fields)])
    assert judged.status is not None
    assert judged.status.restarts_counted == counted
    assert outcome(JOB, judged) is None


@pytest.mark.parametrize(
    ("fields", "policy", "status", "message"),
    [
        pytest.param(
            {}, {}, {"restarts_counted": 2}, "failed 3 times, lastly job-solver-trainer-1: boom", id="one too many"
        ),
        pytest.param({"misconfigured": True}, {}, {}, "job-solver-trainer-1: boom", id="misconfigured"),
        pytest.param(
            {"exit_code": 3},
            {"onExit": [{"exitCodes": [3], "action": "Fail"}]},
            {},
            "job-solver-trainer-1: boom",
            id="by rule",
        ),
    ],
)
def test_what_ends_it(fields: dict[str, Any], policy: dict[str, Any], status: dict[str, int], message: str) -> None:
    of = two_ranks(failurePolicy=FAILURE_POLICY | policy)
    group = trainer(of, attempt=1, **status)
    pods = [rank(of, group, 0), rank(of, group, 1, FAIL, **fields)]
    decided = plan_trainer(of, group, pods, now=0.0)
    ended = group.model_copy(update={"status": decided.status})
    assert outcome(JOB, ended) == FAILED
    assert ended.status is not None
    assert ended.status.conditions[0].message == message
    assert said(decided.actions) == ["stop solver-0"]
    later = plan_trainer(of, ended, [], now=9.0)
    assert (later.actions, later.status.conditions) == ((), ended.status.conditions), "the end is final"


def test_done_when_every_rank_is_and_the_pods_stay_for_their_logs() -> None:
    group = trainer(JOB, attempt=1)
    pods = [rank(JOB, group, 0, SUCCEEDED), rank(JOB, group, 1, SUCCEEDED)]
    done = after(JOB, group, pods)
    assert outcome(JOB, done) == COMPLETED
    assert plan_trainer(JOB, done, pods, now=1.0).actions == ()
    assert plan_trainer(JOB, done, [], now=1.0).actions == (), "and it does not begin again when they are gone"
    leaving = JOB.metadata.model_copy(update={"deletion_timestamp": moment(1.0)})
    deleted = JOB.model_copy(update={"metadata": leaving})
    assert said(plan_trainer(deleted, done, pods, now=1.0).actions) == ["remove solver-0", "remove solver-1"]


def test_it_goes_on_when_the_job_is_to_reach_more_than_when_the_attempt_began() -> None:
    begun = after(JOB, trainer(JOB), [])
    pods = [rank(JOB, begun, 0, SUCCEEDED, attempt=1), rank(JOB, begun, 1, SUCCEEDED, attempt=1)]
    done = after(JOB, begun, pods)
    assert outcome(JOB, done) == COMPLETED
    more = two_ranks(maxSteps=2000)
    assert outcome(more, done) is None
    assert said(plan_trainer(more, done, pods, now=1.0).actions) == ["remove solver-0", "remove solver-1"]
    again = plan_trainer(more, after(more, done, pods), [], now=2.0)
    assert said(again.actions) == ["start solver-0 2", "start solver-1 2"]
    assert again.status.goals == more.spec.goals

    # It may have been told to end a moment before the manifest changed: another attempt finds out.
    assert outcome(more, after(more, begun, pods)) is None
    fewer = two_ranks(maxSteps=2)
    assert outcome(fewer, done) == COMPLETED
    assert plan_trainer(fewer, done, pods, now=1.0).actions == ()


def test_suspended_it_stops_and_clears_and_begins_anew_with_the_next_attempt() -> None:
    asleep = two_ranks(suspend=True)
    group = trainer(JOB, attempt=1)
    pods = [rank(JOB, group, 0), rank(JOB, group, 1)]
    assert said(plan_trainer(asleep, group, pods, now=0.0).actions) == ["stop solver-0", "stop solver-1"]
    gone = [replace(pod, phase=FAIL, stopping=True) for pod in pods]
    assert said(plan_trainer(asleep, group, gone, now=0.0).actions) == ["remove solver-0", "remove solver-1"]
    assert said(plan_trainer(JOB, group, [], now=0.0).actions) == ["start solver-0 2", "start solver-1 2"]


@pytest.mark.parametrize(("failures", "longest"), [(1, 4.0), (2, 6.0), (3, 6.0), (10_000, 6.0)])
def test_backoff_follows_the_failure_policy_and_differs_between_trainers(failures: int, longest: float) -> None:
    def waits(seed: str) -> float:
        return backoff_s(JOB.spec.failure_policy, failures=failures, seed=seed)

    fleet = [waits(f"team/job-{number}/1") for number in range(20)]
    assert len(set(fleet)) == 20
    assert all(longest / 2 <= wait <= longest for wait in fleet)
    # Every look at the same attempt comes to the same moment.
    assert waits("team/job-3/1") == fleet[3]


@given(data=st.data())
def test_whatever_happens_there_is_one_attempt_at_a_time_and_it_comes_to_rest(data: st.DataObject) -> None:
    asleep = two_ranks(suspend=True)
    wanted, group, now = JOB, trainer(JOB), 0.0
    pods: dict[str, ObservedPod] = {}
    started: set[tuple[str, int]] = set()
    failures = 0

    def turn() -> bool:
        nonlocal group
        decided = plan_trainer(wanted, group, list(pods.values()), now=now)
        assert decided == plan_trainer(wanted, group, list(pods.values()), now=now), "the same world, the same plan"
        group = group.model_copy(update={"status": decided.status})
        if data.draw(st.integers(0, 6)) == 6:
            return True  # the operator dies between the status and the actions
        refused = data.draw(st.integers(0, 4)) == 4
        for action in decided.actions:
            match action:
                case StartPod() if refused:
                    pods.clear()  # the executor takes the rest of the gang back
                    break
                case StartPod(pod=pod):
                    assert all(other.attempt == pod.attempt for other in pods.values()), "two attempts at once"
                    pods[pod.name] = ObservedPod(
                        name=pod.name, phase=PENDING, gated=True, attempt=pod.attempt, revision=pod.revision
                    )
                case ReleasePod(name=name):
                    assert (name, pods[name].attempt) not in started, "an attempt used twice"
                    assert len(pods) == 2, "a part of the gang runs"
                    started.add((name, pods[name].attempt))
                    pods[name] = replace(pods[name], phase=RUNNING, gated=False)
                case StopPod(name=name):
                    pods[name] = replace(pods[name], stopping=True)
                case RemovePod(name=name):
                    assert pods[name].ended
                    del pods[name]
        return bool(decided.actions)

    for _ in range(data.draw(st.integers(1, 40))):
        turn()
        now += data.draw(st.sampled_from([0.0, 0.1, 5.0, 100.0]))
        if data.draw(st.integers(0, 5)) == 5:
            wanted = asleep if wanted is JOB else JOB
        running = sorted(name for name, pod in pods.items() if not pod.ended and not pod.gated)
        something_ends = data.draw(st.booleans())
        if running and something_ends:
            name, phase = data.draw(st.sampled_from(running)), data.draw(st.sampled_from([SUCCEEDED, FAIL]))
            failures += phase is FAIL and not pods[name].stopping
            pods[name] = replace(pods[name], phase=phase, finished_at=now)
    for _ in range(60):
        for name, pod in list(pods.items()):
            if pod.stopping and not pod.ended:
                pods[name] = replace(pod, phase=SUCCEEDED, finished_at=now)
        turn()
        now += 1000.0
    status = group.status
    assert status is not None
    assert status.restarts_counted <= min(failures, 2)
    running = sorted(name for name, pod in pods.items() if not pod.ended)
    if outcome(JOB, group) is not None or wanted is asleep:
        assert running == []
    else:
        assert len(pods) == 2
        assert {pod.attempt for pod in pods.values()} == {status.attempt}
        assert not any(pod.gated for pod in pods.values())
