"""The RolloutPools and Trainers that a job's manifest asks for."""

from __future__ import annotations

from trimtab.api import labels, names
from trimtab.api.job import RLJob
from trimtab.api.model import API_VERSION, ObjectMeta, OwnerReference
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool, RolloutPool, RolloutPoolSpec
from trimtab.api.scalars import JobRef
from trimtab.api.trainer import Trainer, TrainerSpec


def pool_of(job: RLJob, pool: JobPool, present: RolloutPool | None) -> RolloutPool:
    """As the manifest has it, except for the size of a pool that is there: whoever scaled it is overruled only by a
    change of the manifest's own number, and with autoscaling not even by that.
    """
    asked = str(pool.replicas)
    applied = asked if present is None else present.metadata.annotations.get(labels.APPLIED_REPLICAS, asked)
    replicas = pool.replicas
    if present is not None and (applied == asked or job.spec.autoscaling.mode == "Auto"):
        most = present.spec.replicas if pool.max_replicas is None else pool.max_replicas
        replicas = min(max(present.spec.replicas, pool.min_replicas), most)
    settings = pool.model_dump(by_alias=False, exclude={"name"}) | {"replicas": replicas}
    return RolloutPool(
        metadata=_metadata(
            job,
            names.pool_name(job.metadata.name, pool.name),
            own={labels.POOL: pool.name},
            annotations={labels.APPLIED_REPLICAS: asked},
        ),
        spec=RolloutPoolSpec.model_validate(settings | {"job_ref": JobRef(name=job.metadata.name)}),
    )


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
