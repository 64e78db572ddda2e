"""What a plan makes of an agent maintainer: ask it once for each set of reports, keep its proposals until a person has
approved them where one must, and let the formula decide whenever it has nothing to say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trimtab.api import labels
from trimtab.api.autoscaling import Agent, PoolDecision, Proposal
from trimtab.api.job import RLJob
from trimtab.api.scalars import MAX_REPLICAS
from trimtab.operator.autoscale.agent.case import Case, ReportHistory, Troubles, case_of, question_id
from trimtab.operator.autoscale.agent.proposal import AgentReply, NotProposed, Proposed
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
    reports: ReportHistory,
    *,
    fleet: Fleet,
    history: History,
    formula: Recommendation,
    troubles: Troubles,
    evidence_is_fresh: bool,
    reply: AgentReply | None,
    now: float,
) -> Advice:
    waiting = _waiting(job, now=now)
    if waiting is not None:
        return _of_proposal(job, waiting, fleet)
    if not evidence_is_fresh or history.cooldown_until > now:
        # Nothing could come of a reply now.
        return Advice(recommendation=formula)
    question = question_id(job, reports)
    ask = None
    if reply is None or reply.question != question:
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
    # Where reports come faster than replies, none would ever fit the newest: what is said in time counts.
    if reply is None or (ask is not None and now - reply.asked_at > agent.timeout_seconds):
        return Advice(recommendation=None, question=ask)
    match reply:
        case NotProposed():
            message = f"the agent did not decide ({reply.cause}: {reply.text}), so the policy does: {formula.message}"
            return Advice(recommendation=replace(formula, message=message), question=ask)
        case Proposed():
            return replace(_of_reply(reply, agent, fleet, now=now), question=ask)


def approved(job: RLJob, proposal: Proposal) -> bool:
    return job.metadata.annotations.get(labels.APPROVE_PROPOSAL) == proposal.id


def _waiting(job: RLJob, *, now: float) -> Proposal | None:
    """A proposal that has waited for long is given up: the world has moved on."""
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


def _of_reply(reply: Proposed, agent: Agent, fleet: Fleet, *, now: float) -> Advice:
    proposed = reply.proposal
    targets = fleet.sizes | {
        name: min(size, MAX_REPLICAS) for name, size in proposed.targets.items() if name in fleet.sizes
    }
    if agent.approval == "Apply" or targets == fleet.sizes:
        recommendation = Recommendation(
            targets=targets, reason="AgentProposal", message=f"the agent: {proposed.reason}", maintainer="Agent"
        )
        return Advice(recommendation=recommendation, victims=proposed.victims)
    proposal = Proposal(
        id=reply.question,
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
