"""The RolloutPools and Trainers that a job's manifest asks for."""

from __future__ import annotations

from trimtab.api import labels, names
from trimtab.api.job import RLJob
from trimtab.api.model import API_VERSION, ObjectMeta, OwnerReference
from trimtab.api.policy import Policy
from trimtab.api.pool import JobPool, RolloutPool, RolloutPoolSpec
from trimtab.api.scalars import JobRef
from trimtab.api.trainer import Trainer, TrainerSpec
from trimtab.operator.plan.covering import COVERS, Cover, own_size, written_cover


def pool_of(job: RLJob, pool: JobPool, present: RolloutPool | None, cover: Cover | None = None) -> RolloutPool:
    """As the manifest has it, except for the size of a pool that is there: whoever scaled it is overruled only by a
    change of the manifest's own number, and with autoscaling not even by that. What it covers for others comes on top.
    """
    asked = str(pool.replicas)
    applied = asked if present is None else present.metadata.annotations.get(labels.APPLIED_REPLICAS, asked)
    annotations = {labels.APPLIED_REPLICAS: asked}
    if cover or (present is not None and COVERS in present.metadata.annotations):
        annotations[COVERS] = written_cover(cover or {})
    replicas = pool.replicas
    if present is not None and job.spec.autoscaling.mode == "Auto":
        replicas = present.spec.replicas
    elif present is not None and applied == asked:
        replicas = own_size(present)
    replicas += sum((cover or {}).values())
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
