"""A pool's part of another cluster: its anchor, its pods, and what they need around them."""

from __future__ import annotations

from dataclasses import replace

from trimtab.api.job import RLJob
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.settings import NatsSettings
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists, Forbidden, Invalid, NotFound
from trimtab.kube.resources import CONFIG_MAPS, SECRETS, Key, Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.pods.credentials import JobCredentials, job_credentials, kept_keys, minted_users
from trimtab.operator.pods.job_keys import JobKeys
from trimtab.operator.pods.observed import observed_pod
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.home_cluster import ensure_credentials, storage_keys, window_of
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import NameBusy, Objected, controller_uid, create_own, is_leaving
from trimtab.operator.reconcile.placement import Placement
from trimtab.operator.remote.link import Connection
from trimtab.operator.remote.origin import Origin
from trimtab.operator.storage_mint import StorageRefused

_ROLE = "rollout"


class RemoteCluster:
    """A PodCluster for one reconcile. The anchor is made with the first thing that needs it."""

    def __init__(self, cluster: Cluster, connection: Connection, origin: Origin, placement: Placement) -> None:
        self._cluster = cluster
        self._connection = connection
        self._origin = origin
        self._placement = placement
        found = connection.config_maps.get(Key(placement.namespace, origin.anchor_name))
        self._anchor = found if found is not None and origin.owns(found) and not is_leaving(found) else None

    @property
    def client(self) -> KubeClient:
        return self._connection.client

    @property
    def pods(self) -> ObjectCache:
        return self._connection.pods

    @property
    def config_maps(self) -> ObjectCache:
        return self._connection.config_maps

    @property
    def owner_uid(self) -> str | None:
        return None if self._anchor is None else str(self._anchor["metadata"]["uid"])

    def key(self, planned: str) -> Key:
        return Key(self._placement.namespace, self._origin.name(planned))

    def own(self, body: Object) -> Object:
        assert self._anchor is not None
        return self._origin.sent_abroad(body, anchor=self._anchor)

    def observed_pods(self) -> list[ObservedPod]:
        """By the names that the plan has for them."""
        if self._anchor is None:
            return []
        return [self._origin.seen_from_home(observed_pod(pod)) for pod in self.pods.under(self.owner_uid)]

    async def credentials(self, job: Object) -> JobCredentials:
        """The job's, in a Secret there: with the addresses and the user for pods elsewhere, and without the seed that
        weights are signed with or any other role's user."""
        await self._ensure_anchor()
        uid = self.owner_uid
        assert uid is not None
        nats, mint = self._dialled()
        window = window_of(mint, self._cluster.storage)
        settings = self._cluster.settings
        object_store = settings.remote_object_store or settings.object_store
        known = self._connection.credentials.get(uid)
        if known is not None and known.is_current(nats, object_store, window=window, roles=(_ROLE,)):
            return known
        at_home = await ensure_credentials(self._cluster, job)
        seed, ledger = kept_keys(at_home.secret)
        assert seed is not None
        assert ledger is not None
        try:
            storage = await storage_keys(self._cluster.storage, job, settings.object_store, roles=(_ROLE,))
        except StorageRefused as error:
            if known is not None:
                return known  # they last for two windows more
            raise Objected(Objection(reason=reasons.STORAGE_REFUSED, message=str(error))) from None
        full = job_credentials(
            job,
            nats=nats,
            object_store=object_store,
            logs=settings.logs,
            keys=JobKeys(signing_seed=seed, ledger_key=ledger),
            users=minted_users(mint, job, roles=(_ROLE,)),
            storage=storage,
            window=window,
        )
        files = set(full.files_of(_ROLE).values())
        shown = {key: value for key, value in full.secret["data"].items() if key in files}
        wanted = replace(full, secret=self.own({**full.secret, "data": shown}))
        await self._store(wanted.secret, owner_uid=uid)
        self._connection.credentials[uid] = wanted
        return wanted

    async def isolate(self, job: Object, typed_job: RLJob) -> None:
        """Who may talk to whom there is that cluster's business: rbac/remote.yaml gives no right to say."""

    def _dialled(self) -> tuple[NatsSettings, AccountMint | None]:
        """What pods there dial, and the mint of their user; None where the settings name a user for them."""
        settings = self._cluster.settings
        nats = settings.remote_nats or settings.nats
        return nats, None if nats.names_a_user else self._cluster.mint

    async def renew_credentials(self, job: Object) -> None:
        """Where there are pods already: the operator may have been started with other settings."""
        if self._anchor is not None:
            await self.credentials(job)

    async def _ensure_anchor(self) -> None:
        """Raises Objected or NameBusy."""
        if self._anchor is not None:
            return
        body = self._origin.anchor(self._placement)
        name, namespace = body["metadata"]["name"], body["metadata"]["namespace"]
        try:
            made = await self.client.create(CONFIG_MAPS, body, namespace=namespace)
        except AlreadyExists:
            made = await self.client.get_or_none(CONFIG_MAPS, name, namespace=namespace) or {}
            if not made or is_leaving(made):
                raise NameBusy(f"an older ConfigMap {name} is still being deleted there") from None
            if not self._origin.owns(made):
                raise Objected(
                    Objection(
                        reason=reasons.NAME_TAKEN,
                        message=f"ConfigMap {name} exists in {self._placement} and is not this pool's: delete it there",
                    )
                ) from None
        except (NotFound, Invalid, Forbidden) as refusal:
            # NotFound is what the server says of a namespace that does not exist.
            message = f"cannot work in {self._placement}: {refusal}"
            raise Objected(Objection(reason=reasons.NOT_ACCEPTED, message=message)) from None
        self._anchor = made
        self.config_maps.note(made)

    async def _store(self, wanted: Object, *, owner_uid: str) -> None:
        metadata = wanted["metadata"]
        name, namespace = metadata["name"], metadata["namespace"]
        present = await self.client.get_or_none(SECRETS, name, namespace=namespace)
        if present is None or controller_uid(present) != owner_uid:
            present = await create_own(self.client, SECRETS, wanted, owner_uid=owner_uid)
        if present.get("data") != wanted["data"]:
            body = {**present, "data": wanted["data"]}
            await self.client.replace(SECRETS, name, body, namespace=namespace)
