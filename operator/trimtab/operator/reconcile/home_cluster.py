"""The operator's own cluster as the place of an owner's pods: the owner itself controls them, and the job's Secret is
beside them.
"""

from __future__ import annotations

from dataclasses import dataclass

from trimtab.fabric.signing import Signer
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import SECRETS, Key, Object, key_of
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.pods.credentials import JobCredentials, job_credentials, kept_seed, minted_users, secret_name
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.pods.sites import ROLES
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.ownership import NameBusy, Objected, controller_uid, create_own


@dataclass(frozen=True, kw_only=True)
class HomeCluster:
    cluster: Cluster
    owner: Object

    @property
    def client(self) -> KubeClient:
        return self.cluster.client

    @property
    def pods(self) -> ObjectCache:
        return self.cluster.pods

    @property
    def config_maps(self) -> ObjectCache:
        return self.cluster.config_maps

    @property
    def owner_uid(self) -> str:
        return str(self.owner["metadata"]["uid"])

    def key(self, planned: str) -> Key:
        return Key(self.owner["metadata"]["namespace"], planned)

    def own(self, body: Object) -> Object:
        return body

    def observed_pods(self) -> list[ObservedPod]:
        return [observed_pod(pod) for pod in self.cluster.pods.under(self.owner_uid)]

    async def credentials(self, job: Object) -> JobCredentials:
        return await ensure_credentials(self.cluster, job)


async def ensure_credentials(cluster: Cluster, job: Object) -> JobCredentials:
    """The job's Secret, made or brought up to date once in the life of this operator, when its users are due to be
    minted again, and when a file in it was renewed; the seed in it stays. Raises Objected or NameBusy."""
    metadata = job["metadata"]
    known = cluster.credentials.get(metadata["uid"])
    window = None if cluster.mint is None else cluster.mint.window
    settings = cluster.settings
    if known is not None and known.is_current(settings.nats, settings.object_store, window=window):
        return known
    namespace, name = metadata["namespace"], secret_name(metadata["name"])
    present = await cluster.client.get_or_none(SECRETS, name, namespace=namespace)
    ours = present is not None and controller_uid(present) == metadata["uid"]
    seed = (kept_seed(present) if ours else None) or Signer.generate().reveal_seed()
    wanted = job_credentials(
        job,
        nats=settings.nats,
        object_store=settings.object_store,
        logs=settings.logs,
        seed=seed,
        users=minted_users(cluster.mint, job, roles=tuple(ROLES.values())),
        window=window,
    )
    if present is not None and ours:
        if present.get("data") != wanted.secret["data"]:
            body = {**present, "data": wanted.secret["data"]}
            await cluster.client.replace(SECRETS, name, body, namespace=namespace)
    else:
        stored = await create_own(cluster.client, SECRETS, wanted.secret, owner_uid=metadata["uid"])
        if stored.get("data") != wanted.secret["data"]:
            # Another operator was faster, with a seed of its own: its seed counts.
            return await ensure_credentials(cluster, job)
    cluster.watches.admit(JobIdentity(key_of(job), metadata["uid"]))
    cluster.credentials[metadata["uid"]] = wanted
    return wanted


async def renew_credentials(cluster: Cluster, job: Object) -> None:
    """For a job that runs already: the operator may have been started with other settings."""
    try:
        await ensure_credentials(cluster, job)
    except (Objected, NameBusy):
        return  # the next start of a pod meets the same objection and puts it into the status
