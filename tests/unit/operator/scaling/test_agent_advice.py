"""An agent maintainer inside a job's plan: asked once, bounded always, approved where it must be, and dispensable."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.dataflow.jobs import job
from tests.support.operator.scaling import NOW, SCALING, fleet, planned, reason, sizes, starving
from trimtab.api import labels
from trimtab.api.conditions import ConditionType, LastError
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.operator.autoscale.agent.proposal import AgentProposal, AgentReply, NotProposed, Proposed
from trimtab.operator.conditions import moment
from trimtab.operator.plan.actions import PutPool
from trimtab.operator.scaling.scaled_plan import ScaledPlan


def agent_job(*, approval: str = "Apply", **scaling: Any) -> RLJob:
    agent = {"model": "m", "apiKeySecret": {"name": "anthropic", "key": "key"}, "approval": approval}
    maintainer = {"type": "Agent", "policy": "ThreeZone", "agent": agent}
    return job(autoscaling={**SCALING, **scaling, "maintainer": maintainer}, pools=[{"name": "local", "replicas": 2}])


def asked(of: RLJob) -> str:
    question = planned(of, fleet(of)).question
    assert question is not None
    return question.decision_id


def answered(of: RLJob, replicas: int, *, victims: tuple[str, ...] = ()) -> Proposed:
    proposal = AgentProposal(targets={"local": replicas}, victims=victims, reason="rollouts became slower")
    return Proposed(question=asked(of), asked_at=NOW, proposal=proposal, transcript="t/job/1.json")


def after(of: RLJob, plan: ScaledPlan, **annotations: str) -> RLJob:
    metadata = of.metadata.model_copy(update={"annotations": annotations})
    return of.model_copy(update={"status": plan.plan.status, "metadata": metadata})


def test_it_is_asked_and_nothing_changes_while_it_thinks() -> None:
    of = agent_job()
    plan = planned(of, fleet(of))
    assert plan.question is not None
    assert plan.question.recommended.targets == {"local": 4}
    assert [pool.name for pool in plan.question.pools] == ["local"]
    assert sizes(plan) == []
    assert plan.plan.status.autoscaling is None
    again = planned(of, fleet(of), history=plan.history, now=NOW + 1.0)
    assert again.question is not None
    assert again.question.decision_id == plan.question.decision_id, "the same reports are the same question"


def test_it_is_shown_which_instances_are_silent_what_failed_and_what_was_decided() -> None:
    of = agent_job()
    failed = LastError(time=moment(NOW), reason="PodFailed", message="OOMKilled", pod="w-1")
    status = RolloutPoolStatus(replicas=2, ready_replicas=2, last_error=failed)
    pool = fleet(of).model_copy(update={"status": status})
    question = planned(of, pool, silent=frozenset({"w-0", "gone-long-ago"})).question
    assert question is not None
    shown = {instance.id: (instance.suspect, instance.last_error) for instance in question.instances}
    assert shown == {"w-0": (True, ""), "w-1": (False, "OOMKilled")}
    assert question.decisions == ()
    decided = planned(of, fleet(of), reply=answered(of, 3))
    later = planned(after(of, decided), fleet(of), history=decided.history, now=NOW + 3600.0)
    assert later.history is not None
    assert [(past.target, past.reason) for past in later.history.decisions][-1] == (3, "AgentProposal")


def test_its_proposal_is_carried_out_with_the_victims_it_names() -> None:
    of = agent_job(scaleDown={"stabilizationSeconds": 0, "maxChange": 5})
    plan = planned(of, fleet(of), reply=answered(of, 1, victims=("job-local-rollout-0",)))
    (action,) = (action for action in plan.plan.actions if isinstance(action, PutPool))
    assert action.pool.spec.replicas == 1
    assert action.pool.metadata.annotations[labels.VICTIMS] == "job-local-rollout-0"
    status = plan.plan.status.autoscaling
    assert status is not None
    assert (status.maintainer, status.reason) == ("Agent", "AgentProposal")
    assert "rollouts became slower" in status.message


def test_where_it_fails_the_formula_decides_and_says_why() -> None:
    of = agent_job()
    failed: AgentReply = NotProposed(question=asked(of), asked_at=NOW, cause="AgentRefused", text="the model declined")
    plan = planned(of, fleet(of), reply=failed)
    assert sizes(plan) == [4]
    status = plan.plan.status.autoscaling
    assert status is not None
    assert status.maintainer == "Policy"
    assert "AgentRefused: the model declined" in status.message


def test_an_answer_counts_while_it_is_recent_and_the_newer_reports_are_asked_about() -> None:
    of = agent_job()

    def later(seconds: float) -> ScaledPlan:
        newer = {"solver": (starving(of, at=NOW + seconds),)}
        return planned(of, fleet(of), reply=answered(of, 3), balance=newer, now=NOW + seconds)

    soon, late = later(60.0), later(600.0)
    assert sizes(soon) == [3]
    assert sizes(late) == []
    assert soon.question is not None
    assert late.question is not None


def test_without_fresh_reports_nobody_asks() -> None:
    of = agent_job()
    plan = planned(of, fleet(of), now=NOW + 10_000.0)
    assert plan.question is None
    assert reason(plan, ConditionType.SCALING_ACTIVE) == "ReportStale"


def test_a_proposal_waits_for_its_approval_and_is_then_carried_out() -> None:
    of = agent_job(approval="Propose")
    plan = planned(of, fleet(of), reply=answered(of, 5))
    assert sizes(plan) == []
    status = plan.plan.status.autoscaling
    assert status is not None
    assert status.proposal is not None
    assert (status.proposal.replicas, status.reason) == (5, "AwaitingApproval")
    approval = {labels.APPROVE_PROPOSAL: status.proposal.id}

    wrong = planned(after(of, plan, **{labels.APPROVE_PROPOSAL: "another"}), fleet(of), now=NOW + 5.0)
    assert sizes(wrong) == []
    right = planned(after(of, plan, **approval), fleet(of), now=NOW + 5.0)
    assert sizes(right) == [4], "100 % a minute is what may be added"
    grown = fleet(of, replicas=4, annotated=4)
    kept = planned(after(of, right, **approval), grown, history=right.history, now=NOW + 200.0)
    assert sizes(kept) == [5], "what was approved is carried out in full when the rate allows"
    there = fleet(of, replicas=5, annotated=5)
    done = planned(after(of, kept, **approval), there, history=kept.history, now=NOW + 205.0)
    assert sizes(done) == []
    assert done.plan.status.autoscaling is not None
    assert done.plan.status.autoscaling.proposal is None


def test_a_proposal_that_nobody_approves_is_given_up() -> None:
    of = agent_job(approval="Propose")
    plan = planned(of, fleet(of), reply=answered(of, 5))
    late = NOW + of.spec.autoscaling.report_timeout_seconds + 60.0
    newer = {"solver": (starving(of, at=late),)}
    again = planned(after(of, plan), fleet(of), balance=newer, now=late)
    assert again.question is not None


def bounded_pool(of: RLJob, replicas: int) -> RolloutPool:
    return fleet(of, replicas=replicas)


@given(
    wish=st.integers(min_value=0, max_value=2**40),
    current=st.integers(min_value=1, max_value=6),
    approval=st.sampled_from(["Apply", "Propose"]),
    victims=st.lists(st.text(min_size=1, max_size=20), max_size=4),
)
def test_whatever_it_proposes_no_bound_is_broken(wish: int, current: int, approval: str, victims: list[str]) -> None:
    of = agent_job(approval=approval)
    plan = planned(of, bounded_pool(of, current), reply=answered(of, wish, victims=tuple(victims)))
    for size in sizes(plan):
        assert 1 <= size <= 6
        assert size <= 2 * current, "more than 100 % were added at once"
        assert approval == "Apply", "carried out without approval"


@pytest.mark.parametrize("mode", ["Auto", "DryRun"])
def test_a_dry_run_asks_too_and_carries_nothing_out(mode: str) -> None:
    of = agent_job(mode=mode)
    plan = planned(of, fleet(of), reply=answered(of, 5))
    assert sizes(plan) == ([4] if mode == "Auto" else [])
