"""The operator's own cluster as the place of an owner's pods: the owner itself controls them, and the job's Secret is
beside them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import structlog

from trimtab.api.job import RLJob
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import SECRETS, Key, Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.pods.credentials import (
    JobCredentials,
    job_credentials,
    job_prefix,
    kept_keys,
    keys_secret,
    minted_users,
    secret_name,
)
from trimtab.operator.pods.job_keys import JobKeys, new_keys
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.pods.sites import roles_of
from trimtab.operator.pods.storage_policy import JobPlace, named_models
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.isolation import ensure_network
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.origin import is_needed, origin_of, origin_prefix
from trimtab.operator.reconcile.ownership import NameBusy, Objected, controller_uid, create_own
from trimtab.operator.storage_mint import StorageMint, StorageRefused

_log = structlog.get_logger(__name__)


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
        return await ensure_credentials(self.cluster, job, look=True)

    async def isolate(self, job: Object, typed_job: RLJob) -> None:
        await ensure_network(self.cluster, job, typed_job, self.owner)


async def ensure_credentials(cluster: Cluster, job: Object, *, look: bool = False) -> JobCredentials:
    """The job's Secret, made or brought up to date once in the life of this operator, when its users are due to be
    minted again, and when a file in it was renewed; the keys in it stay. With `look`, as before a pod is started that
    would wait for it, also when it was deleted. Raises Objected or NameBusy."""
    metadata = job["metadata"]
    known = cluster.credentials.get(metadata["uid"])
    # With the first step the right to read another job's checkpoints is withdrawn.
    begins = job["spec"].get("resumeFrom") is not None and is_needed(job)
    window = (begins, window_of(cluster.mint, cluster.storage))
    settings, roles = cluster.settings, roles_of(job)
    current = known is not None and known.is_current(settings.nats, settings.object_store, window=window, roles=roles)
    if known is not None and current and not look:
        return known
    namespace, name = metadata["namespace"], secret_name(metadata["name"])
    present = await cluster.client.get_or_none(SECRETS, name, namespace=namespace)
    ours = present is not None and controller_uid(present) == metadata["uid"]
    if known is not None and current and present is not None and ours and present.get("data") == known.secret["data"]:
        return known
    own = (present if ours else None) or (None if known is None else known.secret)
    keys, store = _keys(cluster, job, own), settings.object_store
    try:
        origin = await origin_of(
            cluster.client,
            job,
            own if known is None else known.secret,
            object_store=store,
            key_root=cluster.key_root,
            results=cluster.watches.results,
        )
        place = origin_prefix(origin, store) if begins else None
        storage = await storage_keys(cluster.storage, job, store, roles=roles, origin=place)
    except StorageRefused as error:
        if known is not None and present is not None and ours:
            _log.warning("storage_credentials_not_renewed", job=metadata["name"], error=str(error))
            return known  # they last for two windows more
        await _keep(cluster, job, keys, present)
        raise Objected(Objection(reason=reasons.STORAGE_REFUSED, message=str(error))) from None
    except Objected:
        await _keep(cluster, job, keys, present)
        raise
    wanted = job_credentials(
        job,
        nats=settings.nats,
        object_store=settings.object_store,
        logs=settings.logs,
        keys=keys,
        origin=origin,
        users=minted_users(cluster.mint, job, roles=roles),
        storage=storage,
        window=window,
    )
    if present is not None and ours:
        if present.get("data") != wanted.secret["data"]:
            body = {**present, "data": wanted.secret["data"]}
            await cluster.client.replace(SECRETS, name, body, namespace=namespace)
    else:
        stored = await create_own(cluster.client, SECRETS, wanted.secret, owner_uid=metadata["uid"])
        if stored.get("data") != wanted.secret["data"]:
            # Another operator was faster, with keys of its own: its keys count.
            return await ensure_credentials(cluster, job)
    cluster.watches.admit(JobIdentity.of(job))
    cluster.credentials[metadata["uid"]] = wanted
    return wanted


async def _keep(cluster: Cluster, job: Object, keys: JobKeys, present: Object | None) -> None:
    """What objects is asked again, when the job counts as begun: one without a Secret would have lost its keys then."""
    if present is None:
        await create_own(cluster.client, SECRETS, keys_secret(job, keys), owner_uid=job["metadata"]["uid"])


def window_of(users: AccountMint | None, storage: StorageMint | None) -> tuple[int | None, int | None]:
    """Of both mints: what is in the Secret is made anew with the next of either."""
    return None if users is None else users.window, None if storage is None else storage.window


async def storage_keys(
    mint: StorageMint | None,
    job: Object,
    object_store: ObjectStoreSettings,
    *,
    roles: Sequence[str],
    origin: str | None = None,
) -> Mapping[str, StoreCredentials]:
    """By role; none where all pods have the operator's own. `origin` is where another job's checkpoints lie that the
    trainers begin at. Raises StorageRefused."""
    if mint is None:
        return {}
    place = JobPlace(
        bucket=object_store.bucket,
        prefix=job_prefix(job, object_store),
        policies=tuple(policy["name"] for policy in job["spec"]["policies"]),
        datasets=mint.datasets,
        models=named_models(job, mint.models),
        origin=origin,
    )
    return await mint.keys(place, roles=roles, session=job["metadata"]["uid"])


def _keys(cluster: Cluster, job: Object, secret: Object | None) -> JobKeys:
    """Those that the job has, else those that follow from its uid, else new ones. What it has signed with keys that are
    lost would be refused by its own pods, so it is not given others. Raises Objected."""
    seed, ledger = kept_keys(secret)
    if seed is not None and ledger is not None:
        return JobKeys(signing_seed=seed, ledger_key=ledger)
    metadata = job["metadata"]
    if cluster.key_root is not None:
        derived = cluster.key_root.keys(metadata["uid"])
    elif seed is None and (job.get("status") or {}).get("startTime"):
        raise Objected(
            Objection(
                reason=reasons.KEYS_LOST,
                message=f"Secret {secret_name(metadata['name'])} is gone, and with it the keys that the job's weights,"
                " checkpoints and ledger are signed with: restore it from a backup, or delete the job. With"
                " TRIMTAB_JOB_KEYS__SECRET__… the operator can make it again",
            )
        )
    else:
        derived = new_keys()
    return JobKeys(signing_seed=seed or derived.signing_seed, ledger_key=ledger or derived.ledger_key)


async def renew_credentials(cluster: Cluster, job: Object) -> None:
    """For a job that runs already: the operator may have been started with other settings, and its Secret may have been
    deleted, which is looked for now and then."""
    uid, now = job["metadata"]["uid"], cluster.clock()
    look = now >= cluster.secrets_seen.get(uid, 0.0) + cluster.settings.resync_s
    try:
        await ensure_credentials(cluster, job, look=look)
    except (Objected, NameBusy):
        return  # the next start of a pod meets the same objection and puts it into the status
    if look:
        cluster.secrets_seen[uid] = now
