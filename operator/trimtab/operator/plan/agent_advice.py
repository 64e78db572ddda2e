"""What a plan makes of an agent maintainer: ask it once for each set of reports, keep its proposals until a person has
approved them where one must, and let the formula decide whenever it has nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.api import labels
from trimtab.api.autoscaling import Agent, PoolDecision, Proposal
from trimtab.api.job import RLJob
from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.autoscale.agent.answers import Answer, Answered, Unanswered
from trimtab.operator.autoscale.agent.case import Case
from trimtab.operator.autoscale.agent.questions import Reports, Troubles, case_of, question_id
from trimtab.operator.autoscale.fleet import Fleet
from trimtab.operator.autoscale.history import History
from trimtab.operator.autoscale.recommendation import Recommendation
from trimtab.operator.conditions import moment

_MAX_VICTIMS = 256


@dataclass(frozen=True, kw_only=True)
class Advice:
    recommendation: Recommendation | None
    """None while the agent thinks: all stays as it is."""
    question: Case | None = None
    """To be asked."""
    proposal: Proposal | None = None
    """To be shown, and approved."""
    victims: tuple[str, ...] = ()


def advice(
    job: RLJob,
    agent: Agent,
    reports: Reports,
    *,
    fleet: Fleet,
    history: History,
    formula: Recommendation,
    troubles: Troubles,
    evidence_is_fresh: bool,
    answer: Answer | None,
    now: float,
) -> Advice:
    waiting = _waiting(job, now=now)
    if waiting is not None:
        return _of_proposal(job, waiting, fleet)
    if not evidence_is_fresh or history.cooldown_until > now:
        # Nothing could come of an answer now.
        return Advice(recommendation=formula)
    question = question_id(job, reports)
    ask = None
    if answer is None or answer.question != question:
        ask = case_of(
            job,
            reports,
            fleet=fleet,
            history=history,
            formula=formula,
            troubles=troubles,
            question=question,
            now=now,
        )
    # Where reports come faster than answers, none would ever fit the newest: what is said in time counts.
    if answer is None or (ask is not None and now - answer.asked_at > agent.timeout_seconds):
        return Advice(recommendation=None, question=ask)
    match answer:
        case Unanswered():
            message = f"the agent did not decide ({answer.cause}: {answer.text}), so the policy does: {formula.message}"
            return Advice(recommendation=replace(formula, message=message), question=ask)
        case Answered():
            return replace(_of_answer(answer, agent, fleet, now=now), question=ask)


def approved(job: RLJob, proposal: Proposal) -> bool:
    return job.metadata.annotations.get(labels.APPROVE_PROPOSAL) == proposal.id


def _waiting(job: RLJob, *, now: float) -> Proposal | None:
    """One that nobody has looked at for long is given up: the world has moved on."""
    status = job.status.autoscaling if job.status else None
    if status is None or status.proposal is None:
        return None
    age = now - status.proposal.time.timestamp()
    return status.proposal if age <= job.spec.autoscaling.report_timeout_seconds else None


def _of_proposal(job: RLJob, proposal: Proposal, fleet: Fleet) -> Advice:
    wanted = fleet.sizes | {pool.name: pool.target for pool in proposal.pools if pool.name in fleet.sizes}
    if approved(job, proposal):
        recommendation = Recommendation(
            targets=wanted,
            reason="ProposalApproved",
            message=f"proposal {proposal.id} of the agent was approved: {proposal.reason}",
            maintainer="Agent",
        )
        done = wanted == fleet.sizes
        return Advice(recommendation=recommendation, proposal=None if done else proposal, victims=proposal.victims)
    return Advice(recommendation=_awaiting(proposal, fleet), proposal=proposal)


def _of_answer(answer: Answered, agent: Agent, fleet: Fleet, *, now: float) -> Advice:
    proposed = answer.proposal
    targets = fleet.sizes | {
        name: min(size, MAX_REPLICAS) for name, size in proposed.targets.items() if name in fleet.sizes
    }
    if agent.approval == "Apply" or targets == fleet.sizes:
        recommendation = Recommendation(
            targets=targets, reason="AgentProposal", message=f"the agent: {proposed.reason}", maintainer="Agent"
        )
        return Advice(recommendation=recommendation, victims=proposed.victims)
    proposal = Proposal(
        id=answer.question,
        replicas=sum(targets.values()),
        reason=proposed.reason,
        time=moment(now),
        pools=tuple(
            PoolDecision(name=name, current=fleet.sizes[name], target=size) for name, size in sorted(targets.items())
        ),
        victims=proposed.victims[:_MAX_VICTIMS],
    )
    return Advice(recommendation=_awaiting(proposal, fleet), proposal=proposal)


def _awaiting(proposal: Proposal, fleet: Fleet) -> Recommendation:
    return Recommendation(
        targets=fleet.sizes,
        reason="AwaitingApproval",
        message=f"the agent proposes {proposal.replicas} replicas: {proposal.reason}; approve it with the annotation "
        f"{labels.APPROVE_PROPOSAL}={proposal.id}",
        maintainer="Agent",
    )
