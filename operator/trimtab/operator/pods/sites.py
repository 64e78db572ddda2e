"""What pods of an owner need around them before they can start: the job's Secret, the manifest, a meeting point."""

from __future__ import annotations

from typing import Protocol

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.pod_template import template_command
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.api.validation import InvalidManifestError, parse
from trimtab.kube.client import KubeClient
from trimtab.kube.resources import CONFIG_MAPS, SERVICES, Key, Object, key_of
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.pods.credentials import JobCredentials
from trimtab.operator.pods.gang import rendezvous_service
from trimtab.operator.pods.manifest import code_for, manifest_config_map, manifest_for, manifests_in_use
from trimtab.operator.pods.rendering import PodSite
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import Objected, controller_uid, create_own, is_leaving
from trimtab.operator.settings import OperatorSettings

ROLES = {"RLJob": "dataflow", "RolloutPool": "rollout", "Trainer": "trainer"}
"""Of the pods that an object of a kind has."""
TRACKING = "tracking"
"""Of the pod that writes to trackers, which is the RLJob's too."""


def roles_of(job: Object) -> tuple[str, ...]:
    """Of the pods of an RLJob and its children."""
    return (*ROLES.values(), TRACKING) if job["spec"].get("tracking") else tuple(ROLES.values())


class PodCluster(Protocol):
    """The cluster where the pods of one owner live, and what they need around them: the operator's own, or another."""

    @property
    def client(self) -> KubeClient: ...

    @property
    def pods(self) -> ObjectCache: ...

    @property
    def config_maps(self) -> ObjectCache: ...

    @property
    def owner_uid(self) -> str | None:
        """Of what controls them there; None while there is nothing."""

    def key(self, planned: str) -> Key:
        """Of what the plan calls so."""

    def own(self, body: Object) -> Object:
        """As it is stored in this cluster."""

    def observed_pods(self) -> list[ObservedPod]:
        """The owner's pods, by the names that the plan has for them."""

    async def credentials(self, job: Object) -> JobCredentials:
        """Makes what is missing; to be called before the first object is made."""

    async def isolate(self, job: Object, typed_job: RLJob) -> None:
        """Says who may dial the owner's pods, and whom they may, before there is one."""


async def prepare_site(
    pod_cluster: PodCluster,
    *,
    settings: OperatorSettings,
    job: Object,
    typed_job: RLJob,
    owner: Object,
    typed: RLJob | RolloutPool | Trainer,
    role: str,
) -> PodSite:
    """Of the owner's pods of one role. Makes what is missing. Raises Objected when it cannot be had."""
    _check_account(settings, owner, typed)
    credentials = await pod_cluster.credentials(job)
    await pod_cluster.isolate(job, typed_job)
    name, uid = job["metadata"]["name"], owner["metadata"]["uid"]
    manifest = await _ensure_manifest(pod_cluster, typed_job, owner, typed)
    ranks, own_command, own = 1, False, {}
    if isinstance(typed, Trainer):
        ranks = typed.spec.replicas
        own_command = template_command(typed.spec.template, container="trainer") is not None
        own = {labels.POLICY: typed.spec.policy}
        if ranks > 1:
            await create_own(pod_cluster.client, SERVICES, rendezvous_service(owner, job=name), owner_uid=uid)
    elif isinstance(typed, RolloutPool) and labels.POOL in typed.metadata.labels:
        own = {labels.POOL: typed.metadata.labels[labels.POOL]}
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
        code=None if role == TRACKING else code_for(typed_job, typed),
        ranks=ranks,
        labels=own,
        own_command=own_command,
    )


def _check_account(settings: OperatorSettings, owner: Object, typed: RLJob | RolloutPool | Trainer) -> None:
    """Where jobs run beside the operator, a template could take the operator's rights. Raises Objected."""
    if isinstance(typed, RLJob):
        templates = [typed.spec.data.template, typed.spec.tracking_template]
    else:
        templates = [typed.spec.template]
    specs = [(template or {}).get("spec") for template in templates]
    named = {
        spec.get(field)
        for spec in specs
        if isinstance(spec, dict)
        for field in ("serviceAccountName", "serviceAccount")
    }
    if (
        settings.service_account is not None
        and owner["metadata"]["namespace"] == settings.lease.namespace
        and settings.service_account in named
    ):
        message = "template.spec.serviceAccountName: it is the operator's own, whose rights no job gets; name another"
        raise Objected(Objection(reason=reasons.NOT_ACCEPTED, message=message))


async def _ensure_manifest(
    pod_cluster: PodCluster, job: RLJob, owner: Object, typed: RLJob | RolloutPool | Trainer
) -> str:
    """The name of its ConfigMap."""
    manifest, uid = manifest_for(job, typed), pod_cluster.owner_uid
    assert uid is not None
    wanted = pod_cluster.own(
        manifest_config_map(manifest, owner=owner, job=job.metadata.name, role=ROLES[owner["kind"]])
    )
    key = key_of(wanted)
    present = pod_cluster.config_maps.get(key)
    if present is not None and controller_uid(present) == uid and not is_leaving(present):
        return key.name
    try:
        parse(manifest)
    except InvalidManifestError as invalid:
        message = f"pods would not accept the manifest: {invalid}"
        raise Objected(Objection(reason=reasons.NOT_ACCEPTED, message=message)) from None
    pod_cluster.config_maps.note(await create_own(pod_cluster.client, CONFIG_MAPS, wanted, owner_uid=uid))
    return key.name


async def remove_old_manifests(
    pod_cluster: PodCluster, *, job: RLJob, owner: Object, typed: RLJob | RolloutPool | Trainer
) -> None:
    """ConfigMaps that no pod has mounted and no new one would."""
    uid = pod_cluster.owner_uid
    present = [item for item in pod_cluster.config_maps.under(uid) if not is_leaving(item)]
    if uid is None or len(present) <= 1:
        return
    role = ROLES[owner["kind"]]
    current = pod_cluster.own(
        manifest_config_map(manifest_for(job, typed), owner=owner, job=job.metadata.name, role=role)
    )
    needed = manifests_in_use(pod_cluster.pods.under(uid)) | {current["metadata"]["name"]}
    for item in present:
        metadata = item["metadata"]
        if metadata["name"] not in needed:
            await pod_cluster.client.delete(
                CONFIG_MAPS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"]
            )
            pod_cluster.config_maps.note_gone(item)
