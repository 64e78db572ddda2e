"""What the stored status of pools and trainers says in numbers, for those who watch many jobs at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.api.conditions import ConditionType
from trimtab.kube.resources import Object

_POOL_AT_WORK = ("PodsReady", "PodsNotReady")
_TRAINER_AT_WORK = ("RanksReady", "RanksNotReady", "Restarting", "BackingOff")


@dataclass(frozen=True, kw_only=True)
class PoolSize:
    wanted: int
    ready: int


def pool_size(pool: Object | None) -> PoolSize | None:
    """None until an operator has said something about the pool. One at rest wants no pods, and neither does one whose
    cluster is lost: its capacity is rebuilt elsewhere.
    """
    reason = _ready_reason(pool)
    if pool is None or reason is None:
        return None
    wanted = int(pool["spec"].get("replicas", 0)) if reason in _POOL_AT_WORK else 0
    return PoolSize(wanted=wanted, ready=int(pool["status"].get("readyReplicas", 0)))


@dataclass(frozen=True, kw_only=True)
class Scaling:
    recommended: int
    bounded: int


def scaling(job: Object | None) -> Scaling | None:
    """The autoscaler's latest decision; None where it makes none."""
    decision = ((job or {}).get("status") or {}).get("autoscaling")
    return decision and Scaling(recommended=int(decision["recommended"]), bounded=int(decision["bounded"]))


def trainer_steps(trainer: Object | None) -> int | None:
    """None for a trainer of which no steps are expected: at rest, at its end, or nobody's."""
    if trainer is None or _ready_reason(trainer) not in _TRAINER_AT_WORK:
        return None
    return int(trainer["status"].get("step", 0))


def _ready_reason(item: Object | None) -> str | None:
    status: dict[str, Any] = {} if item is None else item.get("status") or {}
    conditions = status.get("conditions") or ()
    return next((said["reason"] for said in conditions if said["type"] == ConditionType.READY), None)
