"""What every reconcile has at hand: the operator's own cluster with the caches of its objects, what the autoscaler and
the jobs' watches know, and the way to pools in other clusters.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.kube.client import KubeClient
from trimtab.kube.events import EventRecorder
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object, Resource
from trimtab.operator.autoscale.agent.maintainer import AgentMaintainers
from trimtab.operator.autoscale.history import History
from trimtab.operator.pods.credentials import JobCredentials
from trimtab.operator.pods.job_keys import KeyRoot
from trimtab.operator.reconcile.cache import ObjectCache, TypedCache
from trimtab.operator.reconcile.job_watches import JobWatches
from trimtab.operator.reconcile.objections import Objections
from trimtab.operator.reconcile.ownership import controller_uid
from trimtab.operator.settings import OperatorSettings
from trimtab.operator.storage_mint import StorageMint

FIELD_MANAGER = "trimtab-operator"
KINDS: dict[str, Resource] = {resource.kind: resource for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS)}


class WorkKey(NamedTuple):
    """One object to reconcile."""

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is left after a reconcile."""

    requeue_at: float | None = None
    requeue: bool = False
    """There is more to do, and others should have their turn first."""
    objected: bool = False
    """Something was refused; `requeue_at` is when to try again."""
    busy: bool = False
    """A name is not free yet; try again soon."""


class RemotePools(Protocol):
    """What the pool reconciler asks for about pools whose pods are in another cluster. trimtab.operator.remote does it;
    running.py puts the two together."""

    async def reconcile(self, cluster: Cluster, item: Object) -> Result:
        """One reconcile of a pool that is, should be or has been in another cluster."""

    def note_home(self, pool: Key) -> None:
        """The pool is gone, or has its pods at home: nothing is said about its cluster any more."""

    def listen(self, pools: ObjectCache, *, wake: Callable[[Key], None]) -> None:
        """Before the first reconcile: `wake` is told of pools whose pods have changed, or whose cluster came or
        went."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    client: KubeClient
    settings: OperatorSettings
    jobs: TypedCache[RLJob]
    pools: TypedCache[RolloutPool]
    trainers: TypedCache[Trainer]
    pods: ObjectCache
    config_maps: ObjectCache
    events: EventRecorder
    watches: JobWatches
    remote: RemotePools
    maintainers: AgentMaintainers
    mint: AccountMint | None
    """Makes the accounts and users of NATS; None where all pods dial with the operator's own."""
    key_root: KeyRoot | None
    """What keys of jobs follow from; None where they are nowhere but in the jobs' Secrets."""
    storage: StorageMint | None
    """Makes credentials of object storage by role; None where all pods have the operator's own."""
    clock: Callable[[], float]
    objections: Objections[WorkKey] = field(default_factory=Objections[WorkKey])
    scaling: dict[str, History] = field(default_factory=dict)
    """By the job's uid, what its autoscaler remembers."""
    credentials: dict[str, JobCredentials] = field(default_factory=dict)
    """By the job's uid, once they are stored."""

    secrets_seen: dict[str, float] = field(default_factory=dict)
    """By the job's uid, when its Secret was last seen."""
    policies: dict[tuple[str, str], tuple[Object, float]] = field(default_factory=dict)
    """By owner's uid and name, the network policies that are stored, and until when that is believed."""

    @property
    def account_bytes(self) -> int | None:
        """What the NATS account of a job may store; None where jobs have none."""
        return None if self.mint is None else self.mint.storage_bytes

    def cache_of(self, kind: str) -> ObjectCache:
        caches: dict[str, ObjectCache] = {
            "RLJob": self.jobs,
            "RolloutPool": self.pools,
            "Trainer": self.trainers,
        }
        return caches[kind]


def work_key(item: Object) -> WorkKey:
    return WorkKey(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])


def by_job_ref(item: Object) -> Iterable[Hashable]:
    """Pools and trainers, by the job they work for."""
    job = job_named_by(item)
    return () if job is None else (Key(item["metadata"]["namespace"], job),)


def job_named_by(item: Object) -> str | None:
    """The job that a pool or trainer names; None for an object that no schema has seen."""
    spec = item.get("spec")
    reference = spec.get("jobRef") if isinstance(spec, dict) else None
    name = reference.get("name") if isinstance(reference, dict) else None
    return name if isinstance(name, str) else None


def by_owner_and_job(item: Object) -> Iterable[Hashable]:
    """Pods and ConfigMaps, by the uid of their controller and by the job's name."""
    job = (item["metadata"].get("labels") or {}).get(labels.JOB, "")
    return (controller_uid(item), Key(item["metadata"]["namespace"], job))


def by_name(item: Object) -> Iterable[Hashable]:
    return ()
