"""Jobs with pools at home and elsewhere, some of them lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.support.dataflow.jobs import job
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool, RolloutPoolStatus
from trimtab.operator.conditions import Statement, updated
from trimtab.operator.plan.children import pool_of

LOST_AFTER_S = 100
ELSEWHERE = {"kubeconfigSecret": {"name": "far", "key": "kubeconfig"}, "lostAfterSeconds": LOST_AFTER_S}


def job_with(*pools: dict[str, Any], **changes: Any) -> RLJob:
    base = job()
    spec = base.spec.model_dump(mode="json") | {"pools": list(pools)} | changes
    metadata = base.metadata.model_dump(mode="json") | {"uid": "job-uid"}
    return RLJob.model_validate(base.model_dump(mode="json") | {"metadata": metadata, "spec": spec})


def with_reach(pool: RolloutPool, *, reachable: bool, since: float = 0.0) -> RolloutPool:
    said = Statement(type=ConditionType.REACHABLE, holds=reachable, reason="Connected" if reachable else "Unreachable")
    conditions = updated((), [said], generation=None, now=since)
    return pool.model_copy(update={"status": RolloutPoolStatus(conditions=conditions)})


def pools_of(of: RLJob, *, lost: Sequence[str] = ()) -> list[RolloutPool]:
    """As the job has made them, with those that are lost cut off since time 0."""
    made = [pool_of(of, asked, None) for asked in of.spec.pools]
    return [
        pool if pool.spec.cluster is None else with_reach(pool, reachable=asked.name not in lost)
        for asked, pool in zip(of.spec.pools, made, strict=True)
    ]
