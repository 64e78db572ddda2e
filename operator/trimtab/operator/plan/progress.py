"""What a job's parts say of themselves, put into its status: steps, rewards, waiting, staleness, sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from trimtab.api.evaluation import EvaluationResult
from trimtab.api.job import PolicyStatus, PoolStatus, RLJob, RLJobStatus
from trimtab.api.pool import RolloutPool
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.operator.plan.durability import Durability
from trimtab.operator.plan.job_pods import pool_label
from trimtab.operator.plan.lifecycle import GivenUp
from trimtab.operator.plan.room import Room


@dataclass(frozen=True, kw_only=True)
class PolicyReport:
    """The latest that is known of a policy."""

    step: int
    version: int
    reward: float | None
    waiting_fraction: float | None
    staleness: float | None
    evaluation: tuple[EvaluationResult, ...] = ()
    tokens_per_second: float | None = None
    """Trained, over all ranks, in the last step."""
    skipped_steps: int = 0
    """In the present attempt."""
    unarchived_steps: int = 0
    """In the present attempt."""
    checkpoint_step: int | None = None


@dataclass(frozen=True, kw_only=True)
class Silences:
    """Dataflow pods that should be heard every second and are not, though others can be: their keys among members."""

    ended: frozenset[str] = frozenset()
    """They were heard."""
    unheard: frozenset[str] = frozenset()
    """They never were, for long."""


@dataclass(frozen=True, kw_only=True)
class JobReport:
    """What the executor has heard of a job; empty when it has heard nothing."""

    policies: Mapping[str, PolicyReport] = field(default_factory=dict)
    balance: Mapping[str, tuple[BalanceReport, ...]] = field(default_factory=dict)
    """By policy, newest first."""
    quarantined_tasks: int = 0
    anchored_anew: int = 0
    """How often the dataflow found that its ledger and a policy's checkpoints did not meet, and went on."""
    given_up_groups: int = 0
    """Because of that."""
    silent: frozenset[str] = frozenset()
    """Pods that were heard of and are not any more."""
    silences: Silences = field(default_factory=Silences)
    given_up: tuple[GivenUp, ...] = ()
    """The latest of them, as long as nothing was completed."""
    any_completed: bool = False
    """Whether any sample was ever heard of."""
    room: Room | None = None
    """Whether its streams can store more; None when that is not known."""
    durability: Durability | None = None
    """How its streams and their servers are set up; None when that is not known."""
    streams_refused: str | None = None
    """Why NATS does not take its streams as they are asked for."""


def policy_statuses(job: RLJob, before: RLJobStatus, report: JobReport) -> tuple[PolicyStatus, ...]:
    """A policy of which nothing is heard just now keeps what was known of it."""
    known = {policy.name: policy for policy in before.policies}
    statuses = []
    for policy in job.spec.learning:
        heard = report.policies.get(policy.name)
        if heard is None:
            statuses.append(known.get(policy.name, PolicyStatus(name=policy.name)))
        else:
            statuses.append(
                PolicyStatus(
                    name=policy.name,
                    step=heard.step,
                    version=heard.version,
                    reward=heard.reward,
                    waiting_fraction=heard.waiting_fraction,
                    staleness=heard.staleness,
                    evaluation=heard.evaluation,
                )
            )
    return tuple(statuses)


def pool_statuses(pools: Sequence[RolloutPool]) -> tuple[PoolStatus, ...]:
    return tuple(
        PoolStatus(
            name=pool_label(pool),
            replicas=pool.status.replicas if pool.status else 0,
            ready_replicas=pool.status.ready_replicas if pool.status else 0,
            desired_replicas=pool.spec.replicas,
        )
        for pool in sorted(pools, key=lambda pool: pool.metadata.name)
    )


def mean(values: Iterable[float | None]) -> float | None:
    """Over the policies of which something is known."""
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def largest(values: Iterable[float | None]) -> float | None:
    """Over the policies of which something is known."""
    return max((value for value in values if value is not None), default=None)
