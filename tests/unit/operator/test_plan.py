"""The plan of a job: a table of single decisions, and a world in which pods come and go as they like."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.dataflow.jobs import job
from trimtab.api.job import RLJob
from trimtab.operator.plan.actions import Action, RemovePod, StartPod, StopPod
from trimtab.operator.plan.job import Observed, Plan, plan
from trimtab.operator.plan.pods import ObservedPod, Phase
from trimtab.operator.plan.trainer_group import backoff_s

GROUP = "job-solver"
RANKS = ("job-solver-trainer-0", "job-solver-trainer-1")
SINGLES = ("job-dataflow-0", "job-local-rollout-0")
RUNNING, SUCCEEDED, FAILED = Phase.RUNNING, Phase.SUCCEEDED, Phase.FAILED
FAILURE_POLICY = {"maxRestarts": 2, "backoffSeconds": 4, "maxBackoffSeconds": 6}


def two_ranks(**fields: Any) -> RLJob:
    return job(trainer={"replicas": 2}, failurePolicy=FAILURE_POLICY, **fields)


def rank(number: int, phase: Phase, *, stopping: bool = False, finished_at: float = 0.0) -> ObservedPod:
    return ObservedPod(
        name=RANKS[number],
        phase=phase,
        group=GROUP,
        stopping=stopping,
        finished_at=None if phase is RUNNING else finished_at,
        message="boom" if phase is FAILED else "",
    )


def single(name: str, phase: Phase = RUNNING, *, stopping: bool = False) -> ObservedPod:
    return ObservedPod(name=name, phase=phase, stopping=stopping)


def said(actions: tuple[Action, ...]) -> list[str]:
    words = []
    for action in actions:
        match action:
            case StartPod(pod=pod):
                words.append(f"start {pod.name} {pod.attempt}")
            case StopPod(name=name):
                words.append(f"stop {name}")
            case RemovePod(name=name):
                words.append(f"remove {name}")
    return words


REST = tuple(single(name) for name in SINGLES)
START_REST = [f"start {name} 0" for name in SINGLES]


@pytest.mark.parametrize(
    ("pods", "attempt", "failures", "now", "expected"),
    [
        pytest.param([], -1, 0, 0.0, [f"start {name} 0" for name in RANKS] + START_REST, id="nothing is there"),
        pytest.param([], 4, 0, 0.0, [f"start {name} 5" for name in RANKS] + START_REST, id="run resumed"),
        pytest.param([rank(0, RUNNING), rank(1, RUNNING), *REST], 0, 0, 0.0, [], id="all is well"),
        pytest.param(
            [rank(0, RUNNING), rank(1, FAILED), *REST], 0, 1, 0.0, [f"stop {RANKS[0]}"], id="one fails, all stop"
        ),
        pytest.param([rank(0, RUNNING, stopping=True), rank(1, FAILED), *REST], 0, 1, 0.0, [], id="it is stopping"),
        pytest.param([rank(0, FAILED, stopping=True), rank(1, FAILED), *REST], 0, 1, 3.9, [], id="backoff"),
        pytest.param(
            [rank(0, FAILED, stopping=True), rank(1, FAILED), *REST], 0, 1, 4.0,
            [*(f"remove {name}" for name in RANKS), *(f"start {name} 1" for name in RANKS)], id="all start again",
        ),
        pytest.param([rank(0, FAILED), rank(1, FAILED), *REST], 1, 2, 5.9, [], id="backoff doubles, up to its bound"),
        pytest.param(
            [rank(0, FAILED), rank(1, FAILED), *REST], 1, 2, 6.0,
            [*(f"remove {name}" for name in RANKS), *(f"start {name} 2" for name in RANKS)], id="last restart",
        ),
        pytest.param([rank(0, RUNNING), *REST], 0, 0, 0.0, [f"stop {RANKS[0]}"], id="a rank is missing"),
        pytest.param([rank(0, SUCCEEDED), rank(1, RUNNING), *REST], 0, 0, 0.0, [], id="one is done first"),
        pytest.param(
            [rank(0, SUCCEEDED, stopping=True), rank(1, SUCCEEDED, stopping=True), *REST], 3, 1, 0.0,
            [*(f"remove {name}" for name in RANKS), *(f"start {name} 4" for name in RANKS)],
            id="stopped by us is not done, and costs no backoff",
        ),
        pytest.param(
            [rank(0, RUNNING), rank(1, RUNNING), single(SINGLES[0])], 0, 0, 0.0, [f"start {SINGLES[1]} 0"],
            id="a pool pod is missing",
        ),
        pytest.param(
            [rank(0, RUNNING), rank(1, RUNNING), *REST, single("job-local-rollout-7")], 0, 0, 0.0,
            ["stop job-local-rollout-7"], id="one too many",
        ),
        pytest.param(
            [rank(0, RUNNING), rank(1, RUNNING), single(SINGLES[0], FAILED, stopping=True), REST[1]], 0, 0, 0.0,
            [f"remove {SINGLES[0]}", f"start {SINGLES[0]} 0"], id="one that was stopped is wanted again",
        ),
        pytest.param(
            [rank(0, RUNNING), rank(1, RUNNING), single(SINGLES[0], stopping=True), REST[1]], 0, 0, 0.0, [],
            id="its name is not free yet",
        ),
    ],
)  # fmt: skip
def test_decisions(pods: list[ObservedPod], attempt: int, failures: int, now: float, expected: list[str]) -> None:
    attempts = {} if attempt < 0 else {GROUP: attempt}
    decided = plan(two_ranks(), Observed(pods=pods, attempts=attempts, failures={GROUP: failures}), now=now)
    assert said(decided.actions) == expected
    assert not decided.succeeded
    assert decided.failure is None


def test_the_budget_is_bounded_and_the_failure_says_why() -> None:
    pods = [rank(0, FAILED), rank(1, FAILED), *REST]
    decided = plan(two_ranks(), Observed(pods=pods, attempts={GROUP: 7}, failures={GROUP: 3}), now=1000.0)
    assert decided.failure == "job-solver failed 3 times, lastly: boom"
    assert said(decided.actions) == [f"stop {name}" for name in SINGLES]


def test_a_misconfigured_pod_fails_the_job_at_once() -> None:
    wrong = replace(REST[0], phase=FAILED, misconfigured=True, message="prompts.jsonl, line 3: not JSON")
    decided = plan(two_ranks(), Observed(pods=[rank(0, RUNNING), wrong], attempts={GROUP: 0}), now=0.0)
    assert decided.failure == f"{REST[0].name}: prompts.jsonl, line 3: not JSON"
    assert said(decided.actions) == [f"stop {rank(0, RUNNING).name}"]


def test_a_job_is_done_when_all_trainers_are_and_nothing_runs() -> None:
    done = [rank(0, SUCCEEDED), rank(1, SUCCEEDED)]
    stopping = plan(two_ranks(), Observed(pods=[*done, *REST], attempts={GROUP: 0}), now=0.0)
    assert said(stopping.actions) == [f"stop {name}" for name in SINGLES]
    assert not stopping.succeeded
    gone = [replace(pod, phase=FAILED, stopping=True) for pod in REST]
    ended = plan(two_ranks(), Observed(pods=[*done, *gone], attempts={GROUP: 0}), now=0.0)
    assert ended == Plan(actions=(), succeeded=True)


def test_a_suspended_job_stops_all_once() -> None:
    suspended = two_ranks(suspend=True)
    pods = [rank(0, RUNNING), rank(1, SUCCEEDED), *REST]
    decided = plan(suspended, Observed(pods=pods, attempts={GROUP: 0}), now=0.0)
    assert said(decided.actions) == [f"stop {name}" for name in (RANKS[0], *SINGLES)]
    again = [replace(pod, stopping=True) for pod in pods]
    assert plan(suspended, Observed(pods=again, attempts={GROUP: 0}), now=0.0) == Plan(actions=())
    assert plan(suspended, Observed(), now=0.0) == Plan(actions=())


@pytest.mark.parametrize(("failures", "expected"), [(1, 4.0), (2, 6.0), (3, 6.0), (10_000, 6.0)])
def test_backoff_follows_the_failure_policy(failures: int, expected: float) -> None:
    assert backoff_s(two_ranks().spec.failure_policy, failures=failures) == expected


@dataclass
class World:
    """An executor of the mind: it does what it is told, and pods end when the test says so."""

    pods: dict[str, ObservedPod] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    failed: dict[str, set[int]] = field(default_factory=dict)
    succeeded: set[str] = field(default_factory=set)
    now: float = 0.0

    def observed(self) -> Observed:
        failures = {group: len(attempts) for group, attempts in self.failed.items()}
        return Observed(pods=list(self.pods.values()), attempts=dict(self.attempts), failures=failures)

    def apply(self, actions: tuple[Action, ...]) -> None:
        for action in actions:
            match action:
                case StartPod(pod=pod):
                    assert pod.name not in self.pods, "two pods of a name"
                    if pod.group is not None:
                        assert pod.group not in self.succeeded, "a finished group started again"
                        others = [other for other in self.pods.values() if other.group == pod.group]
                        assert all(other.attempt == pod.attempt for other in others), "two attempts at once"
                        assert pod.attempt >= self.attempts.get(pod.group, -1)
                        self.attempts[pod.group] = pod.attempt
                    self.pods[pod.name] = ObservedPod(
                        name=pod.name, phase=RUNNING, group=pod.group, attempt=pod.attempt
                    )
                case StopPod(name=name):
                    assert self.pods[name].phase is RUNNING
                    assert not self.pods[name].stopping, "told to stop twice"
                    self.pods[name] = replace(self.pods[name], stopping=True)
                case RemovePod(name=name):
                    assert self.pods[name].phase is not RUNNING
                    del self.pods[name]

    def end(self, name: str, phase: Phase) -> None:
        pod = self.pods[name]
        self.pods[name] = replace(pod, phase=phase, finished_at=self.now)
        if pod.group is None:
            return
        if phase is FAILED and not pod.stopping:
            self.failed.setdefault(pod.group, set()).add(pod.attempt)
        members = [other for other in self.pods.values() if other.group == pod.group]
        if all(other.phase is SUCCEEDED and not other.stopping for other in members):
            self.succeeded.add(pod.group)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_happens_the_plan_keeps_its_promises_and_comes_to_rest(data: st.DataObject) -> None:
    desired = job(policies=2, trainer={"replicas": 2}, failurePolicy=FAILURE_POLICY)
    suspended = job(policies=2, trainer={"replicas": 2}, failurePolicy=FAILURE_POLICY, suspend=True)
    world = World()
    wanted = desired
    for _ in range(data.draw(st.integers(1, 40))):
        decided = plan(wanted, world.observed(), now=world.now)
        assert decided == plan(wanted, world.observed(), now=world.now), "the same world, the same plan"
        world.apply(decided.actions)
        if decided.failure is not None:
            assert max(len(attempts) for attempts in world.failed.values()) == 3
        world.now += data.draw(st.sampled_from([0.0, 0.1, 5.0, 100.0]))
        if data.draw(st.integers(0, 5)) == 5:
            wanted = suspended if wanted is desired else desired
        running = sorted(name for name, pod in world.pods.items() if pod.phase is RUNNING)
        mortal = [name for name in running if world.pods[name].group is not None or world.pods[name].stopping]
        ends = data.draw(st.booleans())
        if mortal and ends:
            world.end(data.draw(st.sampled_from(mortal)), data.draw(st.sampled_from([SUCCEEDED, FAILED])))
    for _ in range(12):  # left alone, it comes to rest
        decided = plan(wanted, world.observed(), now=world.now)
        if not decided.actions:
            world.now += 1000.0
        world.apply(decided.actions)
        for name, pod in list(world.pods.items()):
            if pod.stopping and pod.phase is RUNNING:
                world.end(name, SUCCEEDED)
    final = plan(wanted, world.observed(), now=world.now)
    assert final.actions == ()
    running = sorted(name for name, pod in world.pods.items() if pod.phase is RUNNING)
    if wanted is suspended or final.succeeded or final.failure is not None:
        assert running == []
    else:
        ranks = [name for name, pod in world.pods.items() if pod.group is not None and pod.phase is not SUCCEEDED]
        assert running == sorted([*ranks, *SINGLES])
        assert sum(pod.group is not None for pod in world.pods.values()) == 4
