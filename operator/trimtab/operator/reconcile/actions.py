"""Carrying out what a plan asks for: pods, pools and trainers made, stopped and removed, many at once but not too many.

Every action may be done twice without harm: names are deterministic, deletions name the uid of what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass

from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.kube.errors import Conflict, Forbidden, NotFound
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePool,
    PutPool,
    PutTrainer,
    ReleasePod,
    RemovePod,
    ReplacePod,
    StartPod,
    StopPod,
)
from trimtab.operator.plan.pods import PodPlan
from trimtab.operator.pods.gang import is_gated, lifted
from trimtab.operator.pods.rendering import PodSite, preferring_others, render_pod
from trimtab.operator.pods.sites import PodCluster, prepare_site
from trimtab.operator.reconcile.cluster import KINDS, Cluster
from trimtab.operator.reconcile.objections import Objection
from trimtab.operator.reconcile.ownership import NameBusy, Objected, controller_uid, create_own, is_leaving


@dataclass(frozen=True, kw_only=True)
class Outcome:
    left: bool
    """Not all was done, as others should have their turn."""
    busy: bool
    """A name was not free yet."""
    objection: Objection | None
    refused: tuple[Action, ...] = ()
    """What the objection is about."""


@dataclass(frozen=True, kw_only=True)
class Executor:
    """Carries out actions for one owner, on behalf of one job."""

    cluster: Cluster
    owner: Object
    typed: RLJob | RolloutPool | Trainer
    job: Object | None
    typed_job: RLJob | None
    pod_cluster: PodCluster

    async def do(self, actions: Sequence[Action], *, at_once: bool = False) -> Outcome:
        """`at_once`: all of them now, because they make sense only together."""
        settings = self.cluster.settings
        now = list(actions) if at_once else list(actions)[: settings.actions_per_turn]
        starts = [action for action in now if isinstance(action, StartPod | ReplacePod)]
        gang = [action for action in starts if action.pod.gang]
        sites: dict[str, PodSite] = {}
        results: list[tuple[Sequence[Action], BaseException | None]] = []
        for role in dict.fromkeys(action.pod.role for action in starts):
            try:
                sites[role] = await self._site(role)
            except (Objected, NameBusy) as error:
                refused = [action for action in starts if action.pod.role == role]
                now = [action for action in now if action not in refused]
                gang = [action for action in gang if action not in refused]
                results.append((refused, error))
        gate = asyncio.Semaphore(settings.calls_per_object)

        async def through_gate(action: Action) -> None:
            async with gate:
                await self._act(action, sites)

        work: list[tuple[Sequence[Action], Awaitable[None]]] = [
            ([action], through_gate(action)) for action in now if action not in gang
        ]
        if gang:
            work.append((gang, self._start_gang([action.pod for action in gang], sites[gang[0].pod.role])))
        outcomes = await asyncio.gather(*(doing for _, doing in work), return_exceptions=True)
        results += [(done, outcome) for (done, _), outcome in zip(work, outcomes, strict=True)]
        return _outcome(results, left=len(actions) > settings.actions_per_turn and not at_once)

    async def _site(self, role: str) -> PodSite:
        assert self.job is not None
        assert self.typed_job is not None
        return await prepare_site(
            self.pod_cluster,
            settings=self.cluster.settings,
            job=self.job,
            typed_job=self.typed_job,
            owner=self.owner,
            typed=self.typed,
            role=role,
        )

    async def _act(self, action: Action, sites: Mapping[str, PodSite]) -> None:
        match action:
            case StartPod(pod=pod):
                await self._start(pod, sites[pod.role])
            case ReleasePod(name=name):
                await self._release(name)
            case StopPod(name=name, reason=reason):
                await self._delete_pod(name, why=reason)
            case RemovePod(name=name):
                await self._delete_pod(name, why=None)
            case ReplacePod():
                await self._replace(action, sites[action.pod.role])
            case PutPool(pool=pool):
                await self._put(ROLLOUT_POOLS.kind, pool)
            case PutTrainer(trainer=trainer):
                await self._put(TRAINERS.kind, trainer)
            case DeletePool(name=name):
                await self._delete_pool(name)
            case DeleteJob():
                await self._delete_job()

    async def _start(self, plan: PodPlan, site: PodSite) -> None:
        await self._make(plan, site)
        self._tell(reasons.POD_STARTED, f"started {plan.name}")

    async def _replace(self, action: ReplacePod, site: PodSite) -> None:
        await self._delete_pod(action.name, why=None)
        await self._make(action.pod, site, avoided_node=action.avoided_node)
        where = f" on {action.avoided_node}" if action.avoided_node else ""
        message = f"replaced {action.name}{where}: {action.reason}"
        self.cluster.events.record(self.owner, "Warning", reasons.POD_REPLACED, message)

    async def _make(self, plan: PodPlan, site: PodSite, *, avoided_node: str | None = None) -> None:
        there = self.pod_cluster
        assert there.owner_uid is not None
        rendered = render_pod(plan, site)
        body = there.own(rendered if avoided_node is None else preferring_others(rendered, node=avoided_node))
        there.pods.note(await create_own(there.client, PODS, body, owner_uid=there.owner_uid))

    async def _start_gang(self, ranks: Sequence[PodPlan], site: PodSite) -> None:
        """One after the other, so that the first refusal is the last request. Those that were made wait behind their
        gate and go again: a part of a gang would only hold what others could use."""
        try:
            for plan in ranks:
                await self._make(plan, site)
        except Objected:
            made = [pod for pod in self.pod_cluster.pods.under(self.pod_cluster.owner_uid) if is_gated(pod)]
            for pod in made:
                await self._delete_pod(pod["metadata"]["name"], why=None)
            raise
        for plan in ranks:
            self._tell(reasons.POD_STARTED, f"started {plan.name}, attempt {plan.attempt}")

    async def _release(self, name: str) -> None:
        there = self.pod_cluster
        key = there.key(name)
        pod = there.pods.get(key)
        if pod is None or controller_uid(pod) != there.owner_uid:
            return
        uid = str(pod["metadata"]["uid"])
        try:
            released = await there.client.patch(PODS, key.name, lifted(uid), namespace=key.namespace, strategic=True)
        except NotFound:
            there.pods.note_gone(pod)
            return
        except Forbidden as refusal:
            message = f"the API server does not let Pod {name} run: {refusal}; give the operator's Role patch on pods"
            raise Objected(Objection(reason=reasons.POD_REFUSED, message=message)) from None
        there.pods.note(released)

    async def _delete_pod(self, name: str, *, why: str | None) -> None:
        """With a reason it is stopped: it has its grace period to drain. Without, it has ended and only its name is
        in the way."""
        there = self.pod_cluster
        key = there.key(name)
        pod = there.pods.get(key)
        if pod is None or controller_uid(pod) != there.owner_uid:
            return
        uid = pod["metadata"]["uid"]
        try:
            gone = await there.client.delete(
                PODS, key.name, namespace=key.namespace, uid=uid, grace_s=None if why is not None else 0
            )
        except (NotFound, Conflict):
            # It went by itself, or its successor has the name: the watch will tell.
            there.pods.note_gone(pod)
            return
        if why is not None and gone.get("kind") == "Pod" and is_leaving(gone) and pod["spec"].get("nodeName"):
            there.pods.note(gone)
        else:
            there.pods.note_gone(pod)
        if why is not None:
            self._tell(reasons.POD_STOPPED, f"stopped {name}: {why}")

    async def _put(self, kind: str, child: RolloutPool | Trainer) -> None:
        """Made if it is not there; else its spec and our annotations become what they should be, unless it has changed
        since it was read: a scale by hand must not be lost to a stale copy."""
        resource, cache = KINDS[kind], self.cluster.cache_of(kind)
        wanted = child.model_dump(mode="json", exclude_none=True, exclude={"status": True})
        name = child.metadata.name
        present = cache.get(Key(self._namespace, name))
        if present is None:
            made = await create_own(self.cluster.client, resource, wanted, owner_uid=self._uid)
            cache.note(made)
            reason = reasons.POOL_CREATED if kind == ROLLOUT_POOLS.kind else reasons.TRAINER_CREATED
            self._tell(reason, f"created {kind} {name}")
            return
        if is_leaving(present):
            raise NameBusy(f"{kind} {name} is still being deleted")
        if controller_uid(present) != self._uid:
            message = f"{kind} {name} exists and is not this job's: delete it, or choose another name"
            raise Objected(Objection(reason=reasons.NAME_TAKEN, message=message))
        metadata = present["metadata"]
        body = {
            **present,
            "metadata": {
                **metadata,
                "labels": (metadata.get("labels") or {}) | (wanted["metadata"].get("labels") or {}),
                "annotations": (metadata.get("annotations") or {}) | (wanted["metadata"].get("annotations") or {}),
            },
            "spec": wanted["spec"],
        }
        cache.note(await self.cluster.client.replace(resource, name, body, namespace=self._namespace))

    async def _delete_pool(self, name: str) -> None:
        pool = self.cluster.pools.get(Key(self._namespace, name))
        if pool is None or controller_uid(pool) != self._uid:
            return
        if await _deleted(
            self.cluster.client.delete(
                ROLLOUT_POOLS,
                name,
                namespace=self._namespace,
                uid=pool["metadata"]["uid"],
                propagation="Background",
            )
        ):
            self._tell(reasons.POOL_DELETED, f"deleted RolloutPool {name}: the manifest has it no longer")
        self.cluster.pools.note_gone(pool)

    async def _delete_job(self) -> None:
        metadata = self.owner["metadata"]
        self._tell(reasons.DELETED_AFTER_TTL, "its time after the end is over")
        await _deleted(
            self.cluster.client.delete(
                RLJOBS, metadata["name"], namespace=self._namespace, uid=self._uid, propagation="Background"
            )
        )

    def _tell(self, reason: str, message: str) -> None:
        self.cluster.events.record(self.owner, "Normal", reason, message)

    @property
    def _uid(self) -> str:
        return str(self.owner["metadata"]["uid"])

    @property
    def _namespace(self) -> str:
        return str(self.owner["metadata"]["namespace"])


def _outcome(results: Sequence[tuple[Sequence[Action], BaseException | None]], *, left: bool) -> Outcome:
    """Raises what is neither an objection nor a name that is not free."""
    objections: list[Objection] = []
    refused: list[Action] = []
    busy = False
    for actions, error in results:
        match error:
            case Objected():
                objections.append(error.objection)
                refused += actions
            case NameBusy():
                busy = True
            case BaseException():
                raise error
    objection = min(objections, key=lambda objection: objection.message, default=None)
    return Outcome(left=left, busy=busy, objection=objection, refused=tuple(refused))


async def _deleted(deletion: Awaitable[Object]) -> bool:
    """False when it was gone already, or another has its name."""
    try:
        await deletion
    except (NotFound, Conflict):
        return False
    return True
