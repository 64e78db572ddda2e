"""How many pods a pool needs that serves stages alone: so many that a good part of their places is in use and no group
waits for one. No trainer's waiting tells it, because these pods bring no samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from trimtab.api.autoscaling import Autoscaling, PoolDecision
from trimtab.fabric.wire.balance import BalanceReport
from trimtab.fabric.wire.member import State
from trimtab.operator.autoscale import record
from trimtab.operator.autoscale.decide import REQUEUE_S
from trimtab.operator.autoscale.distribution import percent
from trimtab.operator.autoscale.fleet import Fleet, device_weights
from trimtab.operator.autoscale.guard_rails import bounded
from trimtab.operator.autoscale.history import History, decided, observed
from trimtab.operator.autoscale.recommendation import LatestReports, Recommendation, missing_evidence
from trimtab.operator.autoscale.record import ScaleEvent

_USED = 0.7
"""The share of places that is aimed at: where more are in use, groups begin to wait for one another."""
_TOLERANCE = 0.1
"""A need that differs by less from what is there asks for no change, as with HPA."""
_MOST_BEHIND = 2.0
"""A queue is worked off over several windows: what has piled up once is no lasting need."""

StagesOf = Mapping[str, Sequence[str]]
"""By pool, names of the stages that its pods serve."""


@dataclass(frozen=True, kw_only=True)
class StageDecision:
    targets: dict[str, int]
    pools: tuple[PoolDecision, ...]
    message: str
    events: tuple[ScaleEvent, ...]
    history: History
    requeue_at: float | None
    """When time alone may change it."""


@dataclass(frozen=True, kw_only=True)
class PoolLoad:
    """Of the pods of one pool that were ready at the end of a window."""

    pods: int
    places: int
    """Groups that they may have at once."""
    used: float
    """Of these, on average."""
    queued: int
    """Groups that wait and that no pod has."""
    done: int
    """Groups that were answered in the window."""

    @property
    def need(self) -> float:
        """Places that would do."""
        behind = min(_MOST_BEHIND, 1.0 + self.queued / max(1, self.done))
        return self.used * behind / _USED


def decide_stages(
    reports: LatestReports, *, stages: StagesOf, config: Autoscaling, fleet: Fleet, history: History, now: float
) -> StageDecision:
    """The fleet is of pools of stages alone. The job's own bounds are on rollout replicas, so that each pool's count
    here; a pool without maxReplicas keeps its size."""
    ours = config.model_copy(update={"min_replicas": 0, "max_replicas": None})
    bound = Fleet(pools=tuple(replace(pool, paused=pool.paused or pool.max_replicas is None) for pool in fleet.pools))
    seen = observed(history, config=ours, fleet=bound, reports=(), now=now)
    advice = recommend_stages(reports, stages=stages, fleet=bound)
    kept = bounded(
        advice.targets,
        fleet=bound,
        weights=device_weights(bound),
        config=ours,
        history=seen,
        no_shrink=missing_evidence(reports, config=ours, now=now),
        now=now,
    )
    by_hand = seen.by_hand if seen.by_hand != history.by_hand else None
    return StageDecision(
        targets=kept.targets,
        pools=tuple(
            PoolDecision(name=pool.name, current=pool.desired, target=kept.targets[pool.name]) for pool in bound.pools
        ),
        message=record.explained(advice, kept.limits, dry=False),
        events=record.events(advice, kept, config=ours, fleet=bound, by_hand=by_hand),
        history=decided(seen, config=ours, fleet=bound, wanted=kept.wanted, targets=kept.targets, now=now),
        requeue_at=now + REQUEUE_S if kept.wanted != kept.targets else None,
    )


def recommend_stages(reports: LatestReports, *, stages: StagesOf, fleet: Fleet) -> Recommendation:
    targets = fleet.sizes
    grown, said = 0, []
    for pool in fleet.pools:
        load = load_of(reports, pool=pool.name, stages=stages.get(pool.name, ()))
        if load is None:
            continue
        target = _target(load, desired=pool.desired)
        targets[pool.name] = target
        grown += target - pool.desired
        used = percent(load.used / max(1, load.places))
        said.append(f"stage pool {pool.name} has {used} of {load.places} places in use and {load.queued} groups queued")
    reason = "StagesBusy" if grown > 0 else "StagesIdle" if grown < 0 else "WithinBand"
    return Recommendation(targets=targets, reason=reason, message="; ".join(said) or "nothing is known of stage pools")


def load_of(reports: LatestReports, *, pool: str, stages: Sequence[str]) -> PoolLoad | None:
    """From the newest report that tells of it; None where none does."""
    for report in sorted(_known(reports), key=lambda report: report.at, reverse=True):
        ready = [pod for pod in report.stage_pods if pod.pool == pool and pod.state is State.READY]
        used = [pod.mean_in_flight for pod in ready if pod.mean_in_flight is not None]
        lines = [line for line in report.stages if line.stage in stages]
        if lines and len(used) == len(ready) > 0:
            return PoolLoad(
                pods=len(ready),
                places=sum(pod.capacity for pod in ready),
                used=sum(used),
                queued=max(0, sum(line.waiting for line in lines) - sum(pod.in_flight for pod in ready)),
                done=sum(line.done for line in lines),
            )
    return None


def _known(reports: LatestReports) -> list[BalanceReport]:
    return [report for report in reports.values() if report is not None]


def _target(load: PoolLoad, *, desired: int) -> int:
    if load.places == 0 or abs(load.need / load.places - 1.0) <= _TOLERANCE:
        return desired
    target = max(1, math.ceil(load.need * load.pods / load.places))
    # Pods that are on their way are no reason to ask for more, nor a queue to ask for fewer.
    if target > load.pods:
        return max(desired, target)
    return desired if load.queued else min(desired, target)
