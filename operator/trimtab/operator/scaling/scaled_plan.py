"""The autoscaler's decision as part of a job's plan: sizes of pools, what the status says, when to decide again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from trimtab.api import labels
from trimtab.api.autoscaling import Agent, AutoscalingStatus
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.placement import stages_of
from trimtab.api.pool import RolloutPool
from trimtab.operator.autoscale.agent.case import Case, ReportHistory, Troubles
from trimtab.operator.autoscale.agent.proposal import AgentReply
from trimtab.operator.autoscale.decide import Decision, decide, settle, watch
from trimtab.operator.autoscale.fleet import Fleet, Pool
from trimtab.operator.autoscale.history import History, restored
from trimtab.operator.autoscale.recommendation import LatestReports, missing_evidence, recommend
from trimtab.operator.autoscale.record import MAX_MESSAGE, ScaleEvent, not_scaling
from trimtab.operator.autoscale.stage_pools import StageDecision, decide_stages
from trimtab.operator.conditions import find, updated
from trimtab.operator.plan.actions import Action, DeletePool, PutPool, PutTrainer
from trimtab.operator.plan.children import made_by
from trimtab.operator.plan.job import JobPlan, Observed
from trimtab.operator.plan.job_pods import pool_label
from trimtab.operator.plan.lifecycle import rest_reason
from trimtab.operator.plan.reachability import is_lost
from trimtab.operator.plan.trainer import COMPLETED, outcome
from trimtab.operator.scaling.agent_advice import advice
from trimtab.operator.untrusted import whole_number


@dataclass(frozen=True, kw_only=True)
class ScaledPlan:
    plan: JobPlan
    history: History | None = None
    """To be remembered once the plan is carried out, and not before: a change that failed is no change."""
    events: tuple[ScaleEvent, ...] = ()
    question: Case | None = None
    """For the agent maintainer. Its reply makes another plan."""


def with_scaling(
    plan: JobPlan,
    job: RLJob,
    observed: Observed,
    *,
    history: History | None,
    reply: AgentReply | None = None,
    now: float,
) -> ScaledPlan:
    """`history` is what is remembered of this job; None at the beginning and after a restart. `reply` is the newest of
    an agent maintainer.
    """
    if job.spec.autoscaling.mode == "Off":
        return ScaledPlan(plan=_switched_off(plan, job, now=now))
    if not _may_scale(plan, job):
        return ScaledPlan(plan=plan, history=history)
    known = history if history is not None else _remembered(job, observed.pools, now=now)
    # What is lost is no capacity, and takes nothing from what the job may cost.
    there = [pool for pool in _in_order(observed.pools) if not is_lost(pool, now=now)]
    fleet = Fleet(pools=tuple(_pool(job, pool) for pool in there if pool.spec.rollouts))
    agent = job.spec.autoscaling.maintainer.agent
    if agent is None:
        reports = _newest(_reports(job, observed))
        decision = decide(reports, config=job.spec.autoscaling, fleet=fleet, history=known, now=now)
        return _decided(plan, job, observed, decision, known=known, now=now)
    return _with_agent(plan, job, agent, observed, fleet=fleet, history=known, reply=reply, now=now)


def _with_agent(
    plan: JobPlan,
    job: RLJob,
    agent: Agent,
    observed: Observed,
    *,
    fleet: Fleet,
    history: History,
    reply: AgentReply | None,
    now: float,
) -> ScaledPlan:
    config, held = job.spec.autoscaling, _reports(job, observed)
    reports = _newest(held)
    seen = watch(reports, config=config, fleet=fleet, history=history, now=now)
    given = advice(
        job,
        agent,
        held,
        fleet=fleet,
        history=seen,
        formula=recommend(reports, config=config, fleet=fleet, history=seen, now=now),
        troubles=_troubles(observed),
        evidence_is_fresh=missing_evidence(reports, config=config, now=now) is None,
        reply=reply,
        now=now,
    )
    if given.recommendation is None:
        return ScaledPlan(plan=plan, history=seen, question=given.question)
    decision = settle(given.recommendation, reports, config=config, fleet=fleet, before=history, history=seen, now=now)
    shown = decision.status.model_copy(update={"proposal": given.proposal})
    decided = _decided(
        plan, job, observed, replace(decision, status=shown), known=history, victims=given.victims, now=now
    )
    return replace(decided, question=given.question)


def _decided(
    plan: JobPlan,
    job: RLJob,
    observed: Observed,
    decision: Decision,
    *,
    known: History,
    victims: Collection[str] = (),
    now: float,
) -> ScaledPlan:
    stages = _stage_decision(job, observed, known=known, now=now)
    if stages is not None:
        decision = _together(decision, stages)
    return ScaledPlan(
        plan=replace(
            plan,
            actions=(*plan.actions, *_resizes(job, observed.pools, decision, victims)),
            status=plan.status.model_copy(
                update={
                    "autoscaling": _unless_the_same(job.status.autoscaling if job.status else None, decision.status),
                    "conditions": updated(
                        plan.status.conditions, decision.statements, generation=job.metadata.generation, now=now
                    ),
                }
            ),
            requeue_at=min((at for at in (plan.requeue_at, decision.requeue_at) if at is not None), default=None),
        ),
        history=decision.history,
        events=decision.events,
    )


def _stage_decision(job: RLJob, observed: Observed, *, known: History, now: float) -> StageDecision | None:
    """About pools that serve stages alone, by formula whoever decides about the others; None where there are none."""
    there = [pool for pool in _in_order(observed.pools) if not pool.spec.rollouts and not is_lost(pool, now=now)]
    if not there:
        return None
    return decide_stages(
        _newest(_reports(job, observed)),
        stages={
            pool_label(pool): [stage.name for stage in stages_of(job.spec, pool.spec, name=pool_label(pool))]
            for pool in there
        },
        config=job.spec.autoscaling,
        fleet=Fleet(pools=tuple(_pool(job, pool) for pool in there)),
        history=known.stages or History(since=now, targets=known.targets),
        now=now,
    )


def _together(decision: Decision, stages: StageDecision) -> Decision:
    message = f"{decision.status.message}; {stages.message}"[:MAX_MESSAGE]
    status = decision.status.model_copy(update={"message": message, "pools": (*decision.status.pools, *stages.pools)})
    return replace(
        decision,
        targets={**decision.targets, **stages.targets},
        status=status,
        events=(*decision.events, *stages.events),
        history=replace(decision.history, stages=stages.history),
        requeue_at=min((at for at in (decision.requeue_at, stages.requeue_at) if at is not None), default=None),
    )


def _may_scale(plan: JobPlan, job: RLJob) -> bool:
    """Not while the job is at rest or ends, and not before its children are as the manifest has them."""
    accepted = find(plan.status.conditions, ConditionType.ACCEPTED)
    return (
        rest_reason(job) is None
        and plan.status.completion_time is None
        and (accepted is None or accepted.status == "True")
        and not any(isinstance(action, PutPool | PutTrainer | DeletePool) for action in plan.actions)
    )


def _reports(job: RLJob, observed: Observed) -> ReportHistory:
    """Of the policies that still learn."""
    done = {trainer.spec.policy for trainer in observed.trainers if outcome(job, trainer) == COMPLETED}
    return {
        policy.name: observed.report.balance.get(policy.name, ())
        for policy in job.spec.learning
        if policy.name not in done
    }


def _troubles(observed: Observed) -> Troubles:
    errors = [pool.status.last_error for pool in observed.pools if pool.status is not None]
    return Troubles(
        silent=observed.report.silent,
        errors={error.pod: error.message for error in errors if error is not None and error.pod is not None},
    )


def _newest(reports: ReportHistory) -> LatestReports:
    return {policy: held[0] if held else None for policy, held in reports.items()}


def _in_order(pools: Sequence[RolloutPool]) -> list[RolloutPool]:
    return sorted(pools, key=lambda pool: pool.metadata.name)


def _pool(job: RLJob, pool: RolloutPool) -> Pool:
    spec, status = pool.spec, pool.status
    reachable = find(status.conditions, ConditionType.REACHABLE) if status else None
    return Pool(
        name=pool_label(pool),
        desired=spec.replicas,
        ready=status.ready_replicas if status else 0,
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        # Capacity that people lend is counted, and its size is theirs to choose.
        paused=not made_by(job, pool)
        or spec.suspend
        or pool.metadata.deletion_timestamp is not None
        or (reachable is not None and reachable.status != "True"),
        devices=spec.devices_per_replica,
        cost=spec.cost_per_hour,
        priority=spec.priority,
        startup_s=status.startup_seconds if status else None,
    )


def _remembered(job: RLJob, pools: Sequence[RolloutPool], *, now: float) -> History:
    """What we last set stands on the pools themselves, written together with the size: the status may tell of a
    decision that was never carried out.
    """
    set_by_us = {
        pool_label(pool): size
        for pool in pools
        if (size := whole_number(pool.metadata.annotations.get(labels.AUTOSCALED_REPLICAS))) is not None
    }
    return replace(restored(job.status.autoscaling if job.status else None, now=now), targets=set_by_us)


def _resizes(job: RLJob, pools: Sequence[RolloutPool], decision: Decision, victims: Collection[str]) -> list[Action]:
    if job.spec.autoscaling.mode != "Auto":
        return []
    return [
        PutPool(_resized(pool, target, victims))
        for pool in _in_order(pools)
        if (target := decision.targets.get(pool_label(pool), pool.spec.replicas)) != pool.spec.replicas
    ]


def _resized(pool: RolloutPool, replicas: int, victims: Collection[str]) -> RolloutPool:
    told = {labels.AUTOSCALED_REPLICAS: str(replicas)}
    if victims or labels.VICTIMS in pool.metadata.annotations:
        told[labels.VICTIMS] = ",".join(sorted(victims))
    return pool.model_copy(
        update={
            "spec": pool.spec.model_copy(update={"replicas": replicas}),
            "metadata": pool.metadata.model_copy(update={"annotations": {**pool.metadata.annotations, **told}}),
        }
    )


def _unless_the_same(before: AutoscalingStatus | None, now: AutoscalingStatus) -> AutoscalingStatus:
    """A decision that says what the one before said is not written again: each write would make another reconcile."""
    timeless = {"last_decision_time": None}
    if before is not None and before.model_copy(update=timeless) == now.model_copy(update=timeless):
        return before
    return now


def _switched_off(plan: JobPlan, job: RLJob, *, now: float) -> JobPlan:
    """What an earlier mode has left in the status is taken back."""
    if find(plan.status.conditions, ConditionType.SCALING_ACTIVE) is None and plan.status.autoscaling is None:
        return plan
    of_scaling = (ConditionType.ABLE_TO_SCALE, ConditionType.SCALING_LIMITED)
    kept = [condition for condition in plan.status.conditions if condition.type not in of_scaling]
    conditions = updated(kept, not_scaling(), generation=job.metadata.generation, now=now)
    return replace(plan, status=plan.status.model_copy(update={"autoscaling": None, "conditions": conditions}))
