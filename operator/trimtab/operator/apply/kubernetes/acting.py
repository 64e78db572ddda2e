"""Carrying out what a plan asks for: pods, pools and trainers made, stopped and removed, many at once but not too many.

Every action may be done twice without harm: names are deterministic, deletions name the uid of what they mean.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from trimtab.api.job import RLJob
from trimtab.api.pool import RolloutPool
from trimtab.api.trainer import Trainer
from trimtab.kube.errors import Conflict, NotFound
from trimtab.kube.resources import PODS, RLJOBS, ROLLOUT_POOLS, TRAINERS, Key, Object
from trimtab.operator import event_reasons as reasons
from trimtab.operator.apply.kubernetes.cluster import KINDS, Cluster, Objection, Place
from trimtab.operator.apply.kubernetes.creation import NameBusy, Objected, create_own
from trimtab.operator.apply.kubernetes.ownership import controller_uid, is_leaving
from trimtab.operator.apply.kubernetes.pod_rendering import PodSite, render_pod
from trimtab.operator.apply.kubernetes.pod_sites import HomePlace, prepare_site
from trimtab.operator.plan.actions import (
    Action,
    DeleteJob,
    DeletePool,
    PutPool,
    PutTrainer,
    RemovePod,
    StartPod,
    StopPod,
)
from trimtab.operator.plan.pods import PodPlan


@dataclass(frozen=True, kw_only=True)
class Outcome:
    left: bool
    """Not all was done, as others should have their turn."""
    busy: bool
    """A name was not free yet."""
    objection: Objection | None


@dataclass(frozen=True, kw_only=True)
class Hand:
    """Acts for one owner, on behalf of one job."""

    cluster: Cluster
    owner: Object
    typed: RLJob | RolloutPool | Trainer
    job: Object | None
    typed_job: RLJob | None
    elsewhere: Place | None = None
    """Where its pods are, if not at home."""

    @property
    def place(self) -> Place:
        return self.elsewhere or HomePlace(cluster=self.cluster, owner=self.owner)

    async def do(self, actions: Sequence[Action], *, at_once: bool = False) -> Outcome:
        """`at_once`: all of them in this turn, because they make sense only together."""
        settings = self.cluster.settings
        turn = list(actions) if at_once else list(actions)[: settings.actions_per_turn]
        objections: list[Objection] = []
        busy = False
        try:
            site = await self._site(turn)
        except Objected as objected:
            objections.append(objected.objection)
            site = None
        except NameBusy:
            busy, site = True, None
        if site is None:
            turn = [action for action in turn if not isinstance(action, StartPod)]
        gate = asyncio.Semaphore(settings.calls_per_object)

        async def through_gate(action: Action) -> None:
            async with gate:
                await self._act(action, site)

        outcomes = await asyncio.gather(*(through_gate(action) for action in turn), return_exceptions=True)
        for outcome in outcomes:
            match outcome:
                case Objected():
                    objections.append(outcome.objection)
                case NameBusy():
                    busy = True
                case BaseException():
                    raise outcome
        return Outcome(
            left=len(actions) > settings.actions_per_turn and not at_once,
            busy=busy,
            objection=min(objections, key=lambda objection: objection.message, default=None),
        )

    async def _site(self, actions: Sequence[Action]) -> PodSite | None:
        role = next((action.pod.role for action in actions if isinstance(action, StartPod)), None)
        if role is None:
            return None
        assert self.job is not None
        assert self.typed_job is not None
        return await prepare_site(
            self.place,
            image=self.cluster.settings.images.of(role),
            job=self.job,
            typed_job=self.typed_job,
            owner=self.owner,
            typed=self.typed,
        )

    async def _act(self, action: Action, site: PodSite | None) -> None:
        match action:
            case StartPod(pod=pod):
                assert site is not None
                await self._start(pod, site)
            case StopPod(name=name, reason=reason):
                await self._delete_pod(name, why=reason)
            case RemovePod(name=name):
                await self._delete_pod(name, why=None)
            case PutPool(pool=pool):
                await self._put(ROLLOUT_POOLS.kind, pool)
            case PutTrainer(trainer=trainer):
                await self._put(TRAINERS.kind, trainer)
            case DeletePool(name=name):
                await self._delete_pool(name)
            case DeleteJob():
                await self._delete_job()

    async def _start(self, plan: PodPlan, site: PodSite) -> None:
        place = self.place
        assert place.owner_uid is not None
        body = place.own(render_pod(plan, site))
        place.pods.note(await create_own(place.client, PODS, body, owner_uid=place.owner_uid))
        attempt = f", attempt {plan.attempt}" if plan.gang else ""
        self._tell(reasons.POD_STARTED, f"started {plan.name}{attempt}")

    async def _delete_pod(self, name: str, *, why: str | None) -> None:
        """With a reason it is stopped: it has its grace period to drain. Without, it has ended and only its name is
        in the way."""
        place = self.place
        key = place.key(name)
        pod = place.pods.get(key)
        if pod is None or controller_uid(pod) != place.owner_uid:
            return
        uid = pod["metadata"]["uid"]
        try:
            gone = await place.client.delete(
                PODS, key.name, namespace=key.namespace, uid=uid, grace_s=None if why is not None else 0
            )
        except (NotFound, Conflict):
            # It went by itself, or its successor has the name: the watch will tell.
            place.pods.note_gone(pod)
            return
        if why is not None and gone.get("kind") == "Pod" and is_leaving(gone) and pod["spec"].get("nodeName"):
            place.pods.note(gone)
        else:
            place.pods.note_gone(pod)
        if why is not None:
            self._tell(reasons.POD_STOPPED, f"stopped {name}: {why}")

    async def _put(self, kind: str, child: RolloutPool | Trainer) -> None:
        """Made if it is not there; else its spec and our annotations become what they should be, if nobody has changed
        it since we looked: a scale by hand must not be lost to a stale copy."""
        resource, view = KINDS[kind], self.cluster.view_of(kind)
        wanted = child.model_dump(mode="json", exclude_none=True, exclude={"status": True})
        name = child.metadata.name
        present = view.get(Key(self._namespace, name))
        if present is None:
            made = await create_own(self.cluster.client, resource, wanted, owner_uid=self._uid)
            view.note(made)
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
        view.note(await self.cluster.client.replace(resource, name, body, namespace=self._namespace))

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


async def _deleted(deletion: Awaitable[Object]) -> bool:
    """False when it was gone already, or another has its name."""
    try:
        await deletion
    except (NotFound, Conflict):
        return False
    return True
