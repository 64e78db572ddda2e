"""What pods of an owner need around them before they can start: the job's Secret, the manifest, a meeting point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.pod_template import template_command
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.api.validation import InvalidManifestError, parse
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.mint import MintedUser, UserMint
from trimtab.fabric.signing import Signer
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import CONFIG_MAPS, SECRETS, SERVICES, Key, Object, key_of
from trimtab.operator import event_reasons as reasons
from trimtab.operator.pods.credentials import JobCredentials, job_credentials, kept_seed, secret_name
from trimtab.operator.pods.gang import rendezvous_service
from trimtab.operator.pods.manifest import manifest_config_map, manifest_for, manifests_in_use
from trimtab.operator.pods.rendering import PodSite
from trimtab.operator.reconcile.cache import FreshView
from trimtab.operator.reconcile.cluster import Cluster, Place
from trimtab.operator.reconcile.creation import Objected, create_own
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import controller_uid, is_leaving
from trimtab.operator.settings import OperatorSettings

_ROLES = {"RLJob": "dataflow", "RolloutPool": "rollout", "Trainer": "trainer"}


@dataclass(frozen=True, kw_only=True)
class HomePlace:
    """The operator's own cluster, where the owner itself controls its pods."""

    cluster: Cluster
    owner: Object

    @property
    def client(self) -> KubeClient:
        return self.cluster.client

    @property
    def pods(self) -> FreshView:
        return self.cluster.pods

    @property
    def config_maps(self) -> FreshView:
        return self.cluster.config_maps

    @property
    def owner_uid(self) -> str:
        return str(self.owner["metadata"]["uid"])

    def key(self, planned: str) -> Key:
        return Key(self.owner["metadata"]["namespace"], planned)

    def own(self, body: Object) -> Object:
        return body

    async def credentials(self, job: Object) -> JobCredentials:
        return await ensure_credentials(self.cluster, job)


async def prepare_site(
    place: Place,
    *,
    settings: OperatorSettings,
    job: Object,
    typed_job: RLJob,
    owner: Object,
    typed: RLJob | RolloutPool | Trainer,
) -> PodSite:
    """Makes what is missing. Raises Objected when it cannot be had."""
    credentials, role = await place.credentials(job), _ROLES[owner["kind"]]
    name, uid = job["metadata"]["name"], owner["metadata"]["uid"]
    manifest = await _ensure_manifest(place, typed_job, owner, typed)
    ranks, own_command, own = 1, False, {}
    if isinstance(typed, Trainer):
        ranks = typed.spec.replicas
        own_command = template_command(typed.spec.template, container="trainer") is not None
        own = {labels.POLICY: typed.spec.policy}
        if ranks > 1:
            await create_own(place.client, SERVICES, rendezvous_service(owner, job=name), owner_uid=uid)
    elif isinstance(typed, RolloutPool) and labels.POOL in typed.metadata.labels:
        own = {labels.POOL: typed.metadata.labels[labels.POOL]}
    source = typed_job.spec.workflow.source
    return PodSite(
        owner=owner,
        job=name,
        image=settings.images.of(role),
        pull_secrets=settings.image_pull_secrets,
        requests=settings.requests.of(role),
        engine_requests=settings.requests.of("engine"),
        environment=credentials.environment_of(role),
        secret=credentials.secret_name,
        secret_files=credentials.files_of(role),
        manifest=manifest,
        code=source.config_map.name if source is not None and source.config_map is not None else None,
        ranks=ranks,
        labels=own,
        own_command=own_command,
    )


async def ensure_credentials(cluster: Cluster, job: Object) -> JobCredentials:
    """The job's Secret, made or brought up to date once in the life of this operator, when its users are due to be
    minted again, and when a file in it was renewed; the seed in it stays."""
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
        users=minted_users(cluster.mint, job, roles=tuple(_ROLES.values())),
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
    cluster.credentials[metadata["uid"]] = wanted
    return wanted


def minted_users(mint: UserMint | None, job: Object, *, roles: Sequence[str]) -> dict[str, MintedUser]:
    """By role; none where all pods dial with the operator's own user."""
    if mint is None:
        return {}
    metadata = job["metadata"]
    topology = JobTopology(metadata["namespace"], metadata["name"])
    return {role: mint.job_user(role, topology, job_uid=metadata["uid"]) for role in roles}


async def _ensure_manifest(place: Place, job: RLJob, owner: Object, typed: RLJob | RolloutPool | Trainer) -> str:
    """The name of its ConfigMap."""
    manifest, uid = manifest_for(job, typed), place.owner_uid
    assert uid is not None
    wanted = place.own(manifest_config_map(manifest, owner=owner, job=job.metadata.name, role=_ROLES[owner["kind"]]))
    key = key_of(wanted)
    present = place.config_maps.get(key)
    if present is not None and controller_uid(present) == uid and not is_leaving(present):
        return key.name
    try:
        parse(manifest)
    except InvalidManifestError as invalid:
        message = f"pods would not accept the manifest: {invalid}"
        raise Objected(Objection(reason=reasons.NOT_ACCEPTED, message=message)) from None
    place.config_maps.note(await create_own(place.client, CONFIG_MAPS, wanted, owner_uid=uid))
    return key.name


async def remove_old_manifests(
    place: Place, *, job: RLJob, owner: Object, typed: RLJob | RolloutPool | Trainer
) -> None:
    """ConfigMaps that no pod has mounted and no new one would."""
    uid = place.owner_uid
    present = [item for item in place.config_maps.under(uid) if not is_leaving(item)]
    if uid is None or len(present) <= 1:
        return
    role = _ROLES[owner["kind"]]
    current = place.own(manifest_config_map(manifest_for(job, typed), owner=owner, job=job.metadata.name, role=role))
    needed = manifests_in_use(place.pods.under(uid)) | {current["metadata"]["name"]}
    for item in present:
        metadata = item["metadata"]
        if metadata["name"] not in needed:
            await place.client.delete(
                CONFIG_MAPS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
            )
            place.config_maps.note_gone(item)
