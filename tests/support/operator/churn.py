"""Jobs that are scaled, suspended, deleted and made again at random, and what must be true of them all the while."""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.support.operator.scene import tiny_job
from tests.support.polling import eventually, patiently
from trimtab.api import labels
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError, NotFound
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import CONFIG_MAPS, PODS, RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS, Key, Object, Resource

MOST_REPLICAS = 4
_JUST_BOUND = timedelta(seconds=2)


@dataclass
class Witness:
    """Watches every pod that ever is."""

    pods: Reflector
    attempts: dict[tuple[str, str, str], set[str]] = field(default_factory=dict)
    """Pods by trainer, rank and attempt; there may be one each."""
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pods.listen(self._seen)

    def _seen(self, key: Key, before: Object | None, after: Object | None) -> None:
        if after is None:
            return
        if before is not None:
            self._still_there(key, before, after)
        own = after["metadata"]["labels"]
        # One behind the gate has not been let run: its number is used for another.
        if own[labels.ROLE] == "trainer" and not after["spec"].get("schedulingGates"):
            self._started(key, after)
        if before is None:
            self._count(own[labels.OWNER], own[labels.ROLE])

    def _still_there(self, key: Key, before: Object, after: Object) -> None:
        told = after["metadata"].get("deletionTimestamp") and "deletionTimestamp" not in before["metadata"]
        same = before["metadata"]["uid"] == after["metadata"]["uid"]
        if same and told and after["metadata"].get("deletionGracePeriodSeconds") == 0 and _ran_a_while(after):
            self.broken.append(f"{key.name} ran and was deleted without time to drain")

    def _started(self, key: Key, pod: Object) -> None:
        metadata = pod["metadata"]
        attempt = metadata["labels"][labels.ATTEMPT]
        uids = self.attempts.setdefault((_owner_uid(pod), key.name, attempt), set())
        uids.add(metadata["uid"])
        if len(uids) > 1:
            self.broken.append(f"attempt {attempt} of {key.name} was started twice")

    def _count(self, owner: str, role: str) -> None:
        alive = [pod for pod in self.pods.values() if _belongs(pod, owner, role)]
        most = {"rollout": MOST_REPLICAS, "trainer": 1, "dataflow": 1}[role]
        if len(alive) > most:
            self.broken.append(f"{owner} has {len(alive)} {role} pods, never more than {most} were asked for")


def _owner_uid(item: Object) -> str:
    return str(item["metadata"]["ownerReferences"][0]["uid"])


def _belongs(pod: Object, owner: str, role: str) -> bool:
    own = pod["metadata"]["labels"]
    return (own[labels.OWNER], own[labels.ROLE]) == (owner, role) and "deletionTimestamp" not in pod["metadata"]


def _ran_a_while(pod: Object) -> bool:
    """One that was bound a moment ago may go at once: the server first finds it unscheduled, allows it no time, and
    writes that down after the node has started it."""
    started = pod.get("status", {}).get("startTime")
    if started is None:
        return False
    ran = datetime.fromisoformat(pod["metadata"]["deletionTimestamp"]) - datetime.fromisoformat(started)
    return ran > _JUST_BOUND


@dataclass
class Nodes:
    """Where pods would run: binds them, says that they are ready, and takes its time to let go of those that end."""

    client: KubeClient
    namespace: str
    chance: random.Random

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                for pod in (await self.client.list(PODS, namespace=self.namespace)).items:
                    await self._look(pod)
            except KubeError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self.chance.uniform(0.0, 0.3))

    async def _look(self, pod: Object) -> None:
        metadata = pod["metadata"]
        name, uid = metadata["name"], metadata["uid"]
        if "deletionTimestamp" in metadata:
            if self.chance.random() < 0.2:
                await self.client.delete(PODS, name, namespace=self.namespace, uid=uid, grace_s=0)
        elif not pod["spec"].get("nodeName") and self.chance.random() < 0.5:
            target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
            binding = {"metadata": {"name": name, "uid": uid}, "target": target}
            await self.client.create(PODS, binding, namespace=self.namespace, name=name, subresource="binding")
            ready = {"type": "Ready", "status": "True"}
            now = datetime.now(UTC).isoformat(timespec="seconds")
            status = {"phase": "Running", "conditions": [ready], "startTime": now}
            body = {"metadata": {"uid": uid}, "status": status}
            await self.client.patch(PODS, name, body, namespace=self.namespace, subresource="status", strategic=True)


@dataclass
class Churn:
    client: KubeClient
    namespace: str
    jobs: tuple[str, ...]
    chance: random.Random

    async def run(self) -> None:
        """Until cancelled. What the server refuses now may go the next time."""
        while True:
            try:
                await self._disturb(self.chance.choice(self.jobs))
            except KubeError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(self.chance.uniform(0.0, 0.2))

    async def settle(self, wanted: dict[str, int | None]) -> None:
        """The last word on each job: as many rollout pods, or no job at all."""
        for name, replicas in wanted.items():
            if replicas is None:
                # It may be on its way out already.
                with contextlib.suppress(NotFound):
                    await self.client.delete(RLJOBS, name, namespace=self.namespace)
                continue
            async with patiently(60):
                while (job := await self._job(name)) is None or "deletionTimestamp" in job["metadata"]:
                    if job is None:
                        await self._create(name)
                    await asyncio.sleep(0.2)
                await self._patch(RLJOBS, name, {"spec": {"suspend": False}})
            await eventually(lambda: self._has_pool(name), timeout_s=60)  # noqa: B023 - called in this turn
            await self._patch(ROLLOUT_POOLS, f"{name}-home", {"spec": {"replicas": replicas}})

    async def collect_garbage(self) -> None:
        """What a cluster's garbage collector does: children of jobs that are gone go."""
        while True:
            try:
                await self._collect()
            except KubeError:
                await asyncio.sleep(0.05)
            await asyncio.sleep(0.3)

    async def _collect(self) -> None:
        """Owners are looked at after what they own: one that is made in between must not miss in the list."""
        await self._collect_orphans((ROLLOUT_POOLS, TRAINERS), owners=(RLJOBS,))
        await self._collect_orphans((PODS, CONFIG_MAPS, SECRETS), owners=(RLJOBS, ROLLOUT_POOLS, TRAINERS))

    async def _collect_orphans(self, resources: tuple[Resource, ...], *, owners: tuple[Resource, ...]) -> None:
        found = [(resource, item) for resource in resources for item in await self._listed(resource)]
        alive = {item["metadata"]["uid"] for resource in owners for item in await self._listed(resource)}
        for resource, item in found:
            if _owner_uid(item) not in alive:
                await self._delete(resource, item)

    async def _disturb(self, name: str) -> None:
        dice = self.chance.random()
        if dice < 0.1:
            await self.client.delete(RLJOBS, name, namespace=self.namespace)
        elif dice < 0.3:
            await self._create(name)
        elif dice < 0.45:
            await self._patch(RLJOBS, name, {"spec": {"suspend": self.chance.random() < 0.3}})
        elif dice < 0.6:
            pods = await self._listed(PODS)
            if pods:
                victim = self.chance.choice(pods)["metadata"]["name"]
                await self.client.delete(PODS, victim, namespace=self.namespace)
        else:
            replicas = self.chance.randint(0, MOST_REPLICAS)
            await self._patch(ROLLOUT_POOLS, f"{name}-home", {"spec": {"replicas": replicas}})

    async def _create(self, name: str) -> None:
        await self.client.create(RLJOBS, tiny_job(name), namespace=self.namespace)

    async def _job(self, name: str) -> Object | None:
        return await self.client.get_or_none(RLJOBS, name, namespace=self.namespace)

    async def _has_pool(self, name: str) -> bool:
        """Of its own: that of an earlier job of its name may be there until the garbage collector comes."""
        job = await self._job(name)
        pool = await self.client.get_or_none(ROLLOUT_POOLS, f"{name}-home", namespace=self.namespace)
        if job is None or pool is None:
            return False
        return _owner_uid(pool) == str(job["metadata"]["uid"])

    async def _patch(self, resource: Resource, name: str, body: dict[str, Any]) -> None:
        await self.client.patch(resource, name, body, namespace=self.namespace)

    async def _listed(self, resource: Resource) -> list[Object]:
        return (await self.client.list(resource, namespace=self.namespace)).items

    async def _delete(self, resource: Resource, item: Object) -> None:
        metadata = item["metadata"]
        try:
            await self.client.delete(resource, metadata["name"], namespace=self.namespace, uid=metadata["uid"])
        except KubeError:
            return
