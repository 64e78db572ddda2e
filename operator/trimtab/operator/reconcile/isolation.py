"""Keeps the network policies of a job as they should be: before its first pod is there, and again now and then, as an
author may have deleted or changed one.
"""

from __future__ import annotations

from trimtab.api.job import RLJob
from trimtab.kube.resources import NETWORK_POLICIES, Object
from trimtab.operator.pods.network import job_policy, ranks_policy, tracking_policy
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.ownership import NameBusy, Objected, create_own


async def ensure_network(cluster: Cluster, job: Object, typed_job: RLJob, owner: Object) -> None:
    """Those of the job, and of the owner's own pods. Raises Objected or NameBusy."""
    settings = cluster.settings
    if settings.job_network is None:
        return
    wanted = [
        job_policy(
            job, typed_job, settings=settings.job_network, nats=settings.nats, object_store=settings.object_store
        )
    ]
    if owner["kind"] == "RLJob" and typed_job.spec.tracking:
        wanted.append(tracking_policy(job, typed_job, settings=settings.job_network))
    if owner["kind"] == "Trainer":
        wanted.append(ranks_policy(owner, job=job["metadata"]["name"]))
    for policy in wanted:
        await _ensure(cluster, policy)


async def renew_network(cluster: Cluster, job: Object, typed_job: RLJob) -> None:
    """For a job that runs already."""
    try:
        await ensure_network(cluster, job, typed_job, job)
    except (Objected, NameBusy):
        return  # the next start of a pod meets the same objection and puts it into the status


async def _ensure(cluster: Cluster, wanted: Object) -> None:
    (owner,) = wanted["metadata"]["ownerReferences"]
    name, namespace = wanted["metadata"]["name"], wanted["metadata"]["namespace"]
    known, now = cluster.policies.get((owner["uid"], name)), cluster.clock()
    if known is not None and known[0] == wanted["spec"] and now < known[1]:
        return
    present = await create_own(cluster.client, NETWORK_POLICIES, wanted, owner_uid=owner["uid"])
    if present["spec"] != wanted["spec"]:
        body = {**present, "spec": wanted["spec"]}
        await cluster.client.replace(NETWORK_POLICIES, name, body, namespace=namespace)
    cluster.policies[owner["uid"], name] = (wanted["spec"], now + cluster.settings.resync_s)


def forget_network(cluster: Cluster, owner_uid: str) -> None:
    for key in [key for key in cluster.policies if key[0] == owner_uid]:
        del cluster.policies[key]
