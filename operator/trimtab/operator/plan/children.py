"""The RolloutPools and Trainers that a job's manifest asks for.

What a pool has taken over from pools in lost clusters is written on it, so that exactly that is undone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from trimtab.api import labels, names
from trimtab.api.job import RLJob
from trimtab.api.model import API_VERSION, GROUP, ObjectMeta, OwnerReference
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool, RolloutPool, RolloutPoolSpec
from trimtab.api.scalars import JobRef
from trimtab.api.trainer import Trainer, TrainerSpec

COVERS = f"{GROUP}/covers"
"""An annotation on a RolloutPool: for whom it has more pods than it was asked for, and how many."""

Cover = Mapping[str, int]
"""Pods by the name of the lost pool."""


def pool_of(job: RLJob, pool: JobPool, present: RolloutPool | None, cover: Cover | None = None) -> RolloutPool:
    """As the manifest has it, except for the size of a pool that is there. What it covers for others comes on top."""
    annotations = {labels.APPLIED_REPLICAS: str(pool.replicas)}
    if cover or (present is not None and COVERS in present.metadata.annotations):
        annotations[COVERS] = _written_cover(cover or {})
    replicas = own_replicas(job, pool, present) + sum((cover or {}).values())
    settings = pool.model_dump(by_alias=False, exclude={"name"}) | {"replicas": replicas}
    return RolloutPool(
        metadata=_metadata(
            job,
            names.pool_name(job.metadata.name, pool.name),
            own={labels.POOL: pool.name},
            annotations=annotations,
        ),
        spec=RolloutPoolSpec.model_validate(settings | {"job_ref": JobRef(name=job.metadata.name)}),
    )


def own_replicas(job: RLJob, pool: JobPool, present: RolloutPool | None) -> int:
    """Without what it covers. A size that was set by scaling the pool is overruled only by its bounds and by a change
    of the manifest's own number, and with autoscaling, of pools that it sizes, not even by that.
    """
    if present is None:
        return pool.replicas
    asked = str(pool.replicas)
    if job.spec.autoscaling.mode == "Auto" and (pool.rollouts or pool.max_replicas is not None):
        size = present.spec.replicas
    elif present.metadata.annotations.get(labels.APPLIED_REPLICAS, asked) == asked:
        size = uncovered_replicas(present)
    else:
        return pool.replicas
    size = max(size, pool.min_replicas)
    return size if pool.max_replicas is None else min(size, pool.max_replicas)


def uncovered_replicas(pool: RolloutPool) -> int:
    """What it was asked for, without what it covers."""
    return max(0, pool.spec.replicas - sum(recorded_cover(pool).values()))


def made_by(job: RLJob, pool: RolloutPool) -> bool:
    """And not by hand."""
    return any(owner.uid == (job.metadata.uid or "") and owner.controller for owner in pool.metadata.owner_references)


def trainer_of(job: RLJob, policy: Policy) -> Trainer:
    settings = policy.trainer.model_dump(by_alias=False)
    return Trainer(
        metadata=_metadata(
            job,
            names.trainer_name(job.metadata.name, policy.name),
            own={labels.POLICY: policy.name},
            annotations={},
        ),
        spec=TrainerSpec.model_validate(settings | {"job_ref": JobRef(name=job.metadata.name), "policy": policy.name}),
    )


def _metadata(job: RLJob, name: str, *, own: dict[str, str], annotations: dict[str, str]) -> ObjectMeta:
    owner = OwnerReference(
        api_version=API_VERSION,
        kind=job.kind,
        name=job.metadata.name,
        uid=job.metadata.uid or "",
        controller=True,
        block_owner_deletion=True,
    )
    return ObjectMeta(
        name=name,
        namespace=job.metadata.namespace,
        labels={labels.JOB: job.metadata.name} | own,
        annotations=annotations,
        owner_references=(owner,),
    )


def recorded_cover(pool: RolloutPool) -> dict[str, int]:
    """What was last written down; nothing where the annotation holds something else."""
    try:
        written = json.loads(pool.metadata.annotations.get(COVERS, "{}"))
    except ValueError:
        return {}
    if not isinstance(written, dict):
        return {}
    return {name: count for name, count in written.items() if isinstance(count, int) and count > 0}


def _written_cover(cover: Cover) -> str:
    return json.dumps(dict(cover), sort_keys=True)
