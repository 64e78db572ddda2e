"""Keeps one worker for each pod that is bound to this node, and clears up after pods that are gone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path

import structlog

from trimtab.devcluster.pod.spec import is_finished
from trimtab.devcluster.pod.worker import NodeSite, PodWorker
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import Key, Object

_log = structlog.get_logger(__name__)
_LEAVING_GRACE_S = 5.0


class Kubelet:
    """`pods` holds the pods of this node and no others."""

    def __init__(self, pods: Reflector, *, node: NodeSite) -> None:
        self.pods = pods
        self._node = node
        self._workers: dict[str, PodWorker] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._known: dict[Key, Object] = {}
        self._clearing: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled; then the pods' processes end, and the pods stay for the node's next start."""
        changes = self.pods.changes()
        await self.pods.synced(timeout_s=60.0)
        await asyncio.to_thread(self._clear_leftovers, {pod["metadata"]["uid"] for pod in self.pods.values()})
        try:
            async for key in changes:
                self._consider(key)
        finally:
            await asyncio.shield(self._leave())

    def runs(self, pod: Object, container: str, *, instance: int) -> bool:
        worker = self._workers.get(pod["metadata"]["uid"])
        return worker is not None and worker.runs(container, instance=instance)

    def log_folder(self, pod: Object, container: str) -> Path:
        return self._node.log_folder(pod) / container

    def _consider(self, key: Key) -> None:
        pod = self.pods.get(key)
        before = self._known.get(key)
        if before is not None and (pod is None or pod["metadata"]["uid"] != before["metadata"]["uid"]):
            del self._known[key]
            self._vanished(before)
        if pod is None:
            return
        self._known[key] = pod
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid].update(pod)
        elif self._needs_worker(pod):
            worker = PodWorker(pod, node=self._node)
            worker.update(pod)
            life = asyncio.create_task(worker.live(), name=f"pod {key.namespace}/{key.name}")
            self._workers[uid], self._lives[uid] = worker, life
            life.add_done_callback(lambda life: self._ended(worker, life))

    def _needs_worker(self, pod: Object) -> bool:
        before = self._lives.get(pod["metadata"]["uid"])
        if before is not None:
            # A worker that failed is not tried again, but its pod must not be stuck in deletion.
            return "deletionTimestamp" in pod["metadata"] and not before.cancelled() and before.exception() is not None
        return "deletionTimestamp" in pod["metadata"] or not is_finished(pod)

    def _ended(self, worker: PodWorker, life: asyncio.Task[None]) -> None:
        """One pod's trouble must not end the others; what it was is told in full."""
        self._workers.pop(worker.pod["metadata"]["uid"], None)
        if not life.cancelled() and (error := life.exception()) is not None:
            _log.error("pod_worker_failed", pod=worker.pod["metadata"]["name"], exc_info=error)
            self._node.events.record(worker.pod, "Warning", "NodeError", "the development node failed; see its log")

    def _vanished(self, pod: Object) -> None:
        """The object is gone: what is left of its pod goes at once."""
        task = asyncio.create_task(self._clear(pod))
        self._clearing.add(task)
        task.add_done_callback(self._clearing.discard)

    async def _clear(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self._workers:
            self._workers[uid].stop(grace_s=0.0, keeps_object=True)
        if uid in self._lives:
            await asyncio.wait({self._lives.pop(uid)})
        folders = (self._node.pod_folder(uid), self._node.memory_folder(uid), self._node.log_folder(pod))
        await asyncio.to_thread(_remove, folders)

    async def _leave(self) -> None:
        _log.info("ending_processes", pods=len(self._workers))
        for worker in self._workers.values():
            worker.stop(grace_s=_LEAVING_GRACE_S, keeps_object=True)
        waits = {*self._lives.values(), *self._clearing}
        if waits:
            await asyncio.wait(waits)

    def _clear_leftovers(self, known: set[str]) -> None:
        """Folders of pods that were deleted while the node was not there."""
        for parent in (self._node.folder / "pods", self._node.memory):
            if parent.is_dir():
                _remove(folder for folder in parent.iterdir() if folder.name not in known)
        logs = self._node.folder / "logs"
        if logs.is_dir():
            _remove(folder for folder in logs.iterdir() if folder.name.rpartition("_")[2] not in known)


def _remove(folders: Iterable[Path]) -> None:
    for folder in list(folders):
        shutil.rmtree(folder, ignore_errors=True)
