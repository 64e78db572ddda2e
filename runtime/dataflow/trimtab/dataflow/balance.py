"""Makes the balance report of a window of trainer steps, and the progress line of each step, from the books."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean

from trimtab.api.job import RLJob
from trimtab.api.placement import roles_of
from trimtab.dataflow.ledger.groups import Allotment, all_samples, mean_reward, mean_reward_parts
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.fabric.three_zones import three_zones
from trimtab.fabric.wire.balance import BalanceReport, Instance, StageLoad, Volume
from trimtab.fabric.wire.member import MemberHeartbeat, Role
from trimtab.fabric.wire.progress import MAX_PART_NAMES, StepProgress
from trimtab.fabric.wire.trajectory import Finish


@dataclass(frozen=True, kw_only=True)
class Mark:
    """Counters of a policy at the end of a window; the next window counts from here."""

    step: int
    """The first of the next window: those before have their times."""
    produced_groups: int
    produced_tokens: int
    accepted_groups: int
    """Ever taken, those given up later included: dropping is reported by itself."""
    fresh_groups: int
    consumed_samples: int
    replayed_samples: int
    consumed_tokens: int
    dropped_groups: int
    stages_done: Mapping[str, int]
    stages_failed: Mapping[str, int]
    at: float

    @classmethod
    def of(cls, ledger: Ledger, policy: str, *, now: float) -> Mark:
        books, stream = ledger.trainers[policy], ledger.streams[policy]
        return cls(
            step=books.timed_steps,
            produced_groups=stream.finished_groups,
            produced_tokens=stream.produced_tokens,
            accepted_groups=books.accepted_groups + books.dropped_groups,
            fresh_groups=books.fresh_groups,
            consumed_samples=books.consumed_samples,
            replayed_samples=books.replayed_samples,
            consumed_tokens=books.consumed_tokens,
            dropped_groups=books.dropped_groups,
            stages_done=dict(ledger.stages.answered.done),
            stages_failed=dict(ledger.stages.answered.failed),
            at=now,
        )


def buffered_samples(ledger: Ledger, job: RLJob, policy: str) -> int:
    """That wait for a step."""
    return ledger.trainers[policy].buffered * job.spec.data.group_size


def running_samples(ledger: Ledger, job: RLJob, policy: str) -> int:
    """Asked for and not arrived."""
    return max(0, ledger.running_groups(policy)) * job.spec.data.group_size


def room_samples(job: RLJob, policy: str) -> int:
    """The most that may wait or be in the making: the staleness bound."""
    return (job.spec.data.max_staleness + 1) * job.spec.batch_size(policy)


def step_progress(
    ledger: Ledger, job: RLJob, *, policy: str, step: int, groups: Sequence[Allotment], now: float
) -> StepProgress:
    books = ledger.trainers[policy]
    # A trainer that resumed from a checkpoint may get samples of versions it has not reached again yet.
    samples = list(all_samples(groups))
    staleness = [max(0, step - sample.oldest_version) for sample in samples]
    wait_s, step_s = books.times.waiting(first_step=max(0, step - job.spec.autoscaling.window_steps), last_step=step)
    size = job.spec.data.group_size
    return StepProgress(
        job=job.metadata.name,
        policy=policy,
        step=step,
        reward=mean_reward(groups),
        # A workflow that makes names up as it goes has the first of them shown.
        reward_parts=dict(islice(sorted(mean_reward_parts(groups).items()), MAX_PART_NAMES)),
        staleness=sum(staleness) / len(staleness),
        max_staleness=max(staleness),
        wait_fraction=min(1.0, wait_s / step_s) if step_s else 0.0,
        samples=books.consumed_samples,
        buffered=buffered_samples(ledger, job, policy),
        running=running_samples(ledger, job, policy),
        dropped=books.dropped_groups * size,
        trained_tokens=sum(sample.trained_tokens for sample in samples),
        length=fmean(sample.response_tokens for sample in samples),
        truncated=sum(sample.finish is Finish.LENGTH for sample in samples) / len(samples),
        at=now,
    )


def balance_report(
    ledger: Ledger,
    job: RLJob,
    *,
    policy: str,
    since: Mark,
    until: Mark,
    members: Sequence[MemberHeartbeat],
    ready_s: Mapping[str, float],
) -> BalanceReport:
    """The window between two marks. Instances are the pods that roll out for the policy; `ready_s` says how long each
    was ready in the window.
    """
    books = ledger.trainers[policy]
    scaling = job.spec.autoscaling
    wait_s, step_s = books.times.waiting(first_step=since.step, last_step=until.step - 1)
    wait_fraction = min(1.0, wait_s / step_s) if step_s else 0.0

    def instance(member: MemberHeartbeat, *, version: int) -> Instance:
        availability = _share(ready_s.get(member.member_id, 0.0), of=until.at - since.at)
        return _instance(member, policy, version=version, availability=availability)

    instances = tuple(
        instance(member, version=books.trained_steps) for member in members if _makes_rows(member, job, policy)
    )
    stage_pods = tuple(instance(member, version=0) for member in members if _serves_stages_alone(member, job))
    size = job.spec.data.group_size
    accepted = (until.accepted_groups - since.accepted_groups) * size
    consumed = until.consumed_samples - since.consumed_samples
    replayed = until.replayed_samples - since.replayed_samples
    maintainer = scaling.maintainer.policy if scaling.maintainer.type == "Policy" else scaling.maintainer.type
    branch, target = three_zones(
        wait_fraction=wait_fraction,
        current=len(instances),
        accepted=accepted,
        # What was consumed once more asks for no rollouts. In groups, as what was accepted: episodes without rows, and
        # those that filters left out, were rolled out like the others.
        consumed=(until.fresh_groups - since.fresh_groups) * size,
        tau_low=scaling.tau_low,
        tau_high=scaling.tau_high,
        shrink_margin=scaling.shrink_margin,
    )
    return BalanceReport(
        job=job.metadata.name,
        policy=policy,
        version=books.trained_steps,
        first_step=since.step,
        last_step=max(since.step, until.step - 1),
        wall_seconds=max(0.0, until.at - since.at),
        wait_seconds=wait_s,
        step_seconds=max(step_s, wait_s),
        wait_fraction=wait_fraction,
        produced=Volume(
            samples=(until.produced_groups - since.produced_groups) * size,
            tokens=until.produced_tokens - since.produced_tokens,
        ),
        accepted=Volume(samples=accepted),
        consumed=Volume(samples=consumed, tokens=until.consumed_tokens - since.consumed_tokens),
        replayed=replayed,
        stale_skipped=(until.dropped_groups - since.dropped_groups) * size,
        buffered=buffered_samples(ledger, job, policy),
        staged=sum(ledger.stages.count(stream) for stream in books.buffers) * size,
        room=room_samples(job, policy),
        instances=instances,
        stages=_stage_loads(ledger, policy, since=since, until=until),
        stage_pods=stage_pods,
        branch=branch,
        current=len(instances),
        maintainer=maintainer,
        target=target if maintainer == "ThreeZone" else None,
        at=until.at,
    )


def _stage_loads(ledger: Ledger, policy: str, *, since: Mark, until: Mark) -> tuple[StageLoad, ...]:
    taken = ledger.trainers[policy].buffers
    return tuple(
        StageLoad(
            stage=name,
            waiting=ledger.waiting_for(name),
            done=until.stages_done.get(name, 0) - since.stages_done.get(name, 0),
            failed=until.stages_failed.get(name, 0) - since.stages_failed.get(name, 0),
        )
        for name in ledger.stages.graph.stages
        if any(ledger.stages.graph.applies(name, stream) for stream in taken)
    )


def _makes_rows(member: MemberHeartbeat, job: RLJob, policy: str) -> bool:
    """Pods of stages alone bring no rows. A policy without a role learns from those of others, whoever serves it."""
    if member.role is not Role.ROLLOUT or _serves_stages_alone(member, job):
        return False
    return policy in member.versions or policy not in roles_of(job.spec).values()


def _serves_stages_alone(member: MemberHeartbeat, job: RLJob) -> bool:
    return any(pool.name == member.pool and not pool.rollouts for pool in job.spec.pools)


def _share(seconds: float, *, of: float) -> float:
    return min(1.0, seconds / of) if of > 0 else 1.0


def _instance(member: MemberHeartbeat, policy: str, *, version: int, availability: float) -> Instance:
    return Instance(
        member_id=member.member_id,
        pool=member.pool or "",
        state=member.state,
        samples_per_second=member.samples_per_second,
        tokens_per_second=member.tokens_per_second,
        availability=availability,
        version_lag=max(0, version - member.versions.get(policy, 0)),
        in_flight=member.in_flight,
        mean_in_flight=member.mean_in_flight,
        capacity=member.capacity if member.allowance is None else member.allowance,
    )
