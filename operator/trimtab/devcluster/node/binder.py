"""The scheduler of a cluster with one node: binds what fits, and says of the rest why it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from decimal import Decimal

import structlog

from trimtab.devcluster.container.restarts import BACKOFF
from trimtab.devcluster.node.fitting import Placement, placements
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, KubeError, NotFound
from trimtab.kube.events import EventRecorder
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS, Object
from trimtab.kube.timestamps import timestamp

_log = structlog.get_logger(__name__)
_SYNC_TIMEOUT_S = 60.0


class Binder:
    """`pods` are those of all namespaces, `nodes` this one."""

    def __init__(
        self,
        client: KubeClient,
        pods: Reflector,
        nodes: Reflector,
        *,
        node: str,
        labels: Mapping[str, str],
        allocatable: Mapping[str, Decimal],
        events: EventRecorder,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._pods = pods
        self._nodes = nodes
        self._node = node
        self._labels = labels
        self._allocatable = allocatable
        self._events = events
        self._clock = clock
        self._assumed: set[str] = set()
        self._told: dict[str, str] = {}
        """By uid, the refusal that the pod's condition carries."""

    async def run(self) -> None:
        changes = self._pods.changes()
        await self._pods.synced(timeout_s=_SYNC_TIMEOUT_S)
        await self._nodes.synced(timeout_s=_SYNC_TIMEOUT_S)
        # Who waits may fit once the node is uncordoned.
        self._nodes.listen(lambda *_: changes.add(*self._pods))
        attempt = 0
        while True:
            await changes.next()
            changes.take_all()
            try:
                await self._bind_what_fits()
                attempt = 0
            except KubeError as error:
                _log.warning("binding_failed", error=str(error))
                await asyncio.sleep(BACKOFF.delay_s(attempt))
                attempt += 1
                changes.add(*self._pods)

    async def _bind_what_fits(self) -> None:
        by_uid = {pod["metadata"]["uid"]: pod for pod in self._pods.values()}
        self._assumed = {uid for uid in self._assumed if uid in by_uid and not by_uid[uid]["spec"].get("nodeName")}
        self._told = {uid: message for uid, message in self._told.items() if uid in by_uid}
        node = next(iter(self._nodes.values()), {}).get("spec") or {}
        decided = placements(
            by_uid.values(),
            node=self._node,
            labels=self._labels,
            allocatable=self._allocatable,
            assumed=self._assumed,
            cordoned=bool(node.get("unschedulable")),
            taints=node.get("taints") or (),
        )
        for placement in decided:
            pod = by_uid[placement.uid]
            try:
                if placement.refusal is None:
                    await self._bind(pod)
                elif self._told.get(placement.uid) != placement.refusal:
                    await self._refuse(pod, placement)
            except (Conflict, NotFound):
                continue  # it was deleted or bound meanwhile, which comes as a change

    async def _bind(self, pod: Object) -> None:
        metadata = pod["metadata"]
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"]},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self._node},
        }
        await self._client.create(
            PODS, body, namespace=metadata["namespace"], name=metadata["name"], subresource="binding"
        )
        self._assumed.add(metadata["uid"])
        self._told.pop(metadata["uid"], None)
        message = f"Successfully assigned {metadata['namespace']}/{metadata['name']} to {self._node}"
        self._events.record(pod, "Normal", "Scheduled", message)

    async def _refuse(self, pod: Object, placement: Placement) -> None:
        assert placement.refusal is not None
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": placement.refusal,
            "lastTransitionTime": _since(pod) or timestamp(self._clock()),
        }
        await self._client.patch(
            PODS,
            placement.key.name,
            {"metadata": {"uid": placement.uid}, "status": {"conditions": [condition]}},
            namespace=placement.key.namespace,
            subresource="status",
            strategic=True,
        )
        self._told[placement.uid] = placement.refusal
        self._events.record(pod, "Warning", "FailedScheduling", placement.refusal)


def _since(pod: Object) -> str | None:
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition["lastTransitionTime"])
    return None
