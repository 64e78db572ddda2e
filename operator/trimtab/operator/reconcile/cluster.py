"""Everything a look at one object needs: the API server, what is known of it, and whom to tell."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trimtab.api import labels
from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.fabric.bus.users.mint import UserMint
from trimtab.kube.client import KubeClient
from trimtab.kube.events import EventRecorder
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object, Resource
from trimtab.operator.autoscale.agent.maintainer import AgentDesk
from trimtab.operator.autoscale.history import History
from trimtab.operator.pods.credentials import JobCredentials
from trimtab.operator.reconcile.cache import FreshView, TypedView
from trimtab.operator.reconcile.job_watches import JobReports
from trimtab.operator.reconcile.objections import Objections
from trimtab.operator.reconcile.ownership import controller_uid
from trimtab.operator.remote.links import Links
from trimtab.operator.settings import OperatorSettings

FIELD_MANAGER = "trimtab-operator"
KINDS: dict[str, Resource] = {resource.kind: resource for resource in (RLJOBS, ROLLOUT_POOLS, TRAINERS)}


class WorkKey(NamedTuple):
    """One object to look after."""

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> Key:
        return Key(self.namespace, self.name)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What is left after a look."""

    look_again_at: float | None = None
    more: bool = False
    """There is more to do, and others should have their turn first."""
    objected: bool = False
    """Something was refused; `look_again_at` is when to try again."""
    busy: bool = False
    """A name is not free yet; try again soon."""


class Place(Protocol):
    """Where the pods of one owner are, and what they need around them: at home, or in another cluster."""

    @property
    def client(self) -> KubeClient: ...

    @property
    def pods(self) -> FreshView: ...

    @property
    def config_maps(self) -> FreshView: ...

    @property
    def owner_uid(self) -> str | None:
        """Of what controls them there; None while there is nothing."""

    def key(self, planned: str) -> Key:
        """Of what the plan calls so."""

    def own(self, body: Object) -> Object:
        """As it is stored in this place."""

    async def credentials(self, job: Object) -> JobCredentials:
        """Makes what is missing; to be called before the first object is made."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    client: KubeClient
    settings: OperatorSettings
    jobs: TypedView[RLJob]
    pools: TypedView[RolloutPool]
    trainers: TypedView[Trainer]
    pods: FreshView
    config_maps: FreshView
    events: EventRecorder
    reports: JobReports
    links: Links
    agents: AgentDesk
    mint: UserMint | None
    """Makes the users of NATS; None where all pods dial with the operator's own."""
    clock: Callable[[], float]
    objections: Objections[WorkKey] = field(default_factory=Objections[WorkKey])
    scaling: dict[str, History] = field(default_factory=dict)
    """By the job's uid, what its autoscaler remembers."""
    credentials: dict[str, JobCredentials] = field(default_factory=dict)
    """By the job's uid, once they are stored."""

    def view_of(self, kind: str) -> FreshView:
        views: dict[str, FreshView] = {
            "RLJob": self.jobs,
            "RolloutPool": self.pools,
            "Trainer": self.trainers,
        }
        return views[kind]


def work_key(item: Object) -> WorkKey:
    return WorkKey(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])


def by_job_ref(item: Object) -> Iterable[Hashable]:
    """Pools and trainers, by the job they work for."""
    return (Key(item["metadata"]["namespace"], item["spec"]["jobRef"]["name"]),)


def by_owner_and_job(item: Object) -> Iterable[Hashable]:
    """Pods and ConfigMaps, by the uid of their controller and by the job's name."""
    job = (item["metadata"].get("labels") or {}).get(labels.JOB, "")
    return (controller_uid(item), Key(item["metadata"]["namespace"], job))


def by_name(item: Object) -> Iterable[Hashable]:
    return ()
