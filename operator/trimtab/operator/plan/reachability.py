"""What is said of a pool whose cluster cannot be reached, and when that cluster counts as lost.

The time is counted from the first loss by the condition in the pool's status, so no restart of ours begins it anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.api.conditions import Condition, ConditionType
from trimtab.api.pool import Cluster, RolloutPool, RolloutPoolStatus
from trimtab.operator.conditions import Statement, find, updated

CONNECTED = "Connected"
CONNECTING = "Connecting"
UNREACHABLE = "Unreachable"
LOST = "Lost"
_PATIENCE_S = float(Cluster.model_fields["lost_after_seconds"].default)


def reachable() -> Statement:
    return Statement(type=ConditionType.REACHABLE, holds=True, reason=CONNECTED)


def lost_at(pool: RolloutPool) -> float | None:
    """When its cluster counts as lost; None while it is reachable, and for a pool at home."""
    said = find(pool.status.conditions, ConditionType.REACHABLE) if pool.status else None
    if said is None or said.status != "False":
        return None
    # A pool that is to come home from a cluster that is away waits as long as one that said nothing about it.
    patience_s = _PATIENCE_S if pool.spec.cluster is None else pool.spec.cluster.lost_after_seconds
    return said.last_transition_time.timestamp() + patience_s


def is_lost(pool: RolloutPool, *, now: float) -> bool:
    at = lost_at(pool)
    return at is not None and now >= at


def is_said_lost(conditions: Sequence[Condition]) -> bool:
    ready = find(conditions, ConditionType.READY)
    return ready is not None and ready.reason == LOST


def is_usable(pool: RolloutPool) -> bool:
    """Whether its pods can be made and stopped just now, as far as is known."""
    if pool.spec.cluster is None:
        return True
    said = find(pool.status.conditions, ConditionType.REACHABLE) if pool.status else None
    return said is not None and said.status == "True"


def status_while_connecting(pool: RolloutPool, *, now: float) -> RolloutPoolStatus:
    """Nothing is known yet. What an operator before us has said stays, above all since when."""
    before = pool.status or RolloutPoolStatus()
    if find(before.conditions, ConditionType.REACHABLE) is not None:
        return before
    statement = Statement(type=ConditionType.REACHABLE, holds=None, reason=CONNECTING)
    conditions = updated(before.conditions, [statement], generation=pool.metadata.generation, now=now)
    return before.model_copy(update={"conditions": conditions})


def status_out_of_reach(pool: RolloutPool, *, reason: str, message: str, now: float) -> RolloutPoolStatus:
    """The last that was known of its pods stays, because they probably go on, until the cluster counts as lost."""
    before = pool.status or RolloutPoolStatus()
    generation = pool.metadata.generation
    loss = Statement(type=ConditionType.REACHABLE, holds=False, reason=reason, message=message)
    known = before.model_copy(update={"conditions": updated(before.conditions, [loss], generation=generation, now=now)})
    if not is_lost(pool.model_copy(update={"status": known}), now=now):
        return known
    message = f"{message}; its capacity is rebuilt elsewhere"
    statements = [
        # A kubeconfig that is refused stays refused: that is what has to be mended.
        Statement(
            type=ConditionType.REACHABLE,
            holds=False,
            reason=LOST if reason == UNREACHABLE else reason,
            message=message,
        ),
        Statement(type=ConditionType.READY, holds=False, reason=LOST, message="its cluster is lost"),
    ]
    return known.model_copy(
        update={
            "conditions": updated(known.conditions, statements, generation=generation, now=now),
            "replicas": 0,
            "ready_replicas": 0,
            "draining_replicas": 0,
            "updated_replicas": 0,
            "tokens_per_second": 0.0,
        }
    )
