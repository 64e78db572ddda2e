"""The manifest as a pod reads it, in an immutable ConfigMap named after its content.

A pod keeps the manifest it was made with, also when its containers are started again after the job has changed; and no
kubelet's cache can give a new pod the old one. What programs cannot see is left out, so that suspending or scaling a
job makes no new ConfigMap.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.model import ObjectMeta
from trimtab.api.pool import JobPool, RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.api.workflow import WorkflowSource
from trimtab.kube.resources import Object
from trimtab.operator.plan.job_pods import pool_label, trained_policy
from trimtab.operator.reconcile.ownership import owned_by

JOB_FOLDER = "/trimtab/job"
JOB_FILE = f"{JOB_FOLDER}/job.yaml"
_KEY = "job.yaml"
_HEX_DIGITS = 10


def manifest_for(job: RLJob, owner: RLJob | RolloutPool | Trainer) -> dict[str, Any]:
    """The job as the pods of `owner` should see it: with the owner's own settings where it has some."""
    spec = job.spec.model_copy(update={"suspend": False, "ttl_seconds_after_finished": None})
    if spec.workflow.source is not None and spec.workflow.source.config_map is not None:
        # The files of the ConfigMap lie beside the manifest.
        source = WorkflowSource(path=JOB_FOLDER)
        spec = spec.model_copy(update={"workflow": spec.workflow.model_copy(update={"source": source})})
    if isinstance(owner, RolloutPool):
        spec = spec.model_copy(update={"pools": _pools_with(spec.pools, owner)})
    elif isinstance(owner, Trainer):
        policies = tuple(
            trained_policy(job, owner) if policy.name == owner.spec.policy else policy for policy in spec.policies
        )
        spec = spec.model_copy(update={"policies": policies})
    named = ObjectMeta(name=job.metadata.name, namespace=job.metadata.namespace)
    seen = job.model_copy(update={"metadata": named, "spec": spec, "status": None})
    return seen.model_dump(mode="json", exclude_none=True, exclude={"metadata": {"managed_fields"}})


def _pools_with(pools: Iterable[JobPool], own: RolloutPool) -> tuple[JobPool, ...]:
    name = pool_label(own)
    written = {pool.name: pool for pool in pools}
    # The pod has no use for the size; it stays what the manifest says.
    replicas = written[name].replicas if name in written else own.spec.min_replicas
    settings = own.spec.model_dump(exclude={"job_ref", "suspend"}, by_alias=False)
    written[name] = JobPool.model_validate(
        settings | {"name": name, "replicas": replicas} | ({} if name not in written else _bounds(written[name]))
    )
    return tuple(written.values())


def _bounds(pool: JobPool) -> dict[str, int | None]:
    return {"min_replicas": pool.min_replicas, "max_replicas": pool.max_replicas}


def code_for(job: RLJob, owner: RLJob | RolloutPool | Trainer) -> str | None:
    """The ConfigMap with the user's code, for pods that run it. A trainer does only where its algorithm is the user's
    own: it holds the keys that weights are signed with.
    """
    source = job.spec.workflow.source
    if source is None or source.config_map is None:
        return None
    if isinstance(owner, Trainer) and trained_policy(job, owner).algorithm.custom is None:
        return None
    return source.config_map.name


def manifest_config_map(manifest: dict[str, Any], *, owner: Object, job: str, role: str) -> Object:
    text = json.dumps(manifest, sort_keys=True, indent=1)
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]
    name = owner["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{name}-{role}-{digest}",
            "namespace": owner["metadata"]["namespace"],
            "labels": {labels.JOB: job, labels.OWNER: name, labels.ROLE: role},
            "ownerReferences": owned_by(owner),
        },
        "immutable": True,
        "data": {_KEY: text},
    }


def manifests_in_use(pods: Iterable[Object]) -> set[str]:
    """Names of the ConfigMaps that these pods have mounted."""
    used = set()
    for pod in pods:
        for volume in pod["spec"].get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                if "configMap" in source:
                    used.add(str(source["configMap"]["name"]))
    return used
