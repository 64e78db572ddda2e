"""One pod on this node, from its binding to its deletion: volumes, init containers, sidecars, main ones, the end."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from trimtab.devcluster.container import environment
from trimtab.devcluster.container.command import check_supported, command_of
from trimtab.devcluster.container.environment import SourceMissing
from trimtab.devcluster.container.gpus import GpuBook
from trimtab.devcluster.container.probes import Prober
from trimtab.devcluster.container.process import Launch
from trimtab.devcluster.container.restarts import BACKOFF, RestartPolicy, policy_of
from trimtab.devcluster.container.runner import ContainerRunner, ContainerSite
from trimtab.devcluster.container.sandbox import Mount, Sandbox
from trimtab.devcluster.container.state import AFTER_INIT, CREATING, ContainerState
from trimtab.devcluster.pod.ports import PortBook, shared_host_of, variables_of
from trimtab.devcluster.pod.resumption import resumed
from trimtab.devcluster.pod.sources import PodSources
from trimtab.devcluster.pod.spec import PodFacts, Role, containers, is_finished, of_role
from trimtab.devcluster.pod.status import PodFailure, status_of
from trimtab.devcluster.pod.status_writer import StatusWriter
from trimtab.devcluster.volumes import pod_volumes
from trimtab.devcluster.volumes.pod_volumes import VolumeFolders, VolumeRefused, hosts_mounts
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, KubeError, NotFound
from trimtab.kube.events import EventRecorder
from trimtab.kube.resources import PODS, Object
from trimtab.kube.timestamps import epoch

_log = structlog.get_logger(__name__)
_TMP = Path("/tmp")  # noqa: S108 - the container's own
_DEFAULT_GRACE_S = 30
_REFRESH_S = 30.0


@dataclass(frozen=True, kw_only=True)
class NodeSite:
    """What all pods of the node have in common."""

    name: str
    client: KubeClient
    session: aiohttp.ClientSession
    folder: Path
    memory: Path
    sandbox: Sandbox | None
    sandbox_problem: str
    host_paths_allowed: bool
    environment: Mapping[str, str]
    allocatable: Mapping[str, Decimal]
    ports: PortBook
    gpus: GpuBook
    events: EventRecorder
    clock: Callable[[], float]

    def log_folder(self, pod: Object) -> Path:
        metadata = pod["metadata"]
        return self.folder / "logs" / f"{metadata['namespace']}_{metadata['name']}_{metadata['uid']}"

    def pod_folder(self, uid: str) -> Path:
        return self.folder / "pods" / uid

    def memory_folder(self, uid: str) -> Path:
        return self.memory / uid


class PodWorker:
    def __init__(self, pod: Object, *, node: NodeSite) -> None:
        self.pod = pod
        self._node = node
        self._folder = node.pod_folder(pod["metadata"]["uid"])
        self._folders = VolumeFolders(disk=self._folder / "volumes", memory=node.memory_folder(pod["metadata"]["uid"]))
        self._ports = node.ports.take(pod)
        self._sources = PodSources(client=node.client, pod=pod)
        self._runners: dict[str, ContainerRunner] = {}
        self._lives: dict[str, asyncio.Task[None]] = {}
        self._initial, self._failure = resumed(pod, now=node.clock())
        self._status = StatusWriter(node.client, pod, compute=self._compute_status)
        self._stop = asyncio.Event()
        self._grace_s: float = _DEFAULT_GRACE_S
        self._deadline: float | None = None
        self._stopped = False
        self._keeps_object = False

    def update(self, pod: Object) -> None:
        """What the API server has now; a deletion, or a shorter grace for one under way."""
        self.pod = pod
        self._sources.pod = pod
        self._status.observed(pod)
        if "deletionTimestamp" in pod["metadata"]:
            self.stop(grace_s=float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def stop(self, *, grace_s: float, keeps_object: bool = False) -> None:
        """`keeps_object`: the processes end, and nothing is said about it: the node leaves, or the object has left."""
        if keeps_object:
            self._keeps_object = True
            self._status.close()
        loop = asyncio.get_running_loop()
        self._grace_s = min(self._grace_s, grace_s) if self._stop.is_set() else grace_s
        self._stop.set()
        if self._deadline is not None and loop.time() + grace_s < self._deadline:
            loop.call_later(grace_s, self._kill_all)

    def runs(self, container: str, *, instance: int) -> bool:
        """Whether this very instance of the container is there, and not one before or after it."""
        runner = self._runners.get(container)
        return runner is not None and runner.instance == instance

    async def live(self) -> None:
        try:
            if not is_finished(self.pod):
                await self._run_and_report()
            if not self._stop.is_set():
                await self._stop.wait()
            if not self._keeps_object:
                await self._delete_object()
        finally:
            self._node.ports.release(self.pod)
            self._node.gpus.release(uid=self.pod["metadata"]["uid"])

    async def _run_and_report(self) -> None:
        publishing = asyncio.create_task(self._status.run())
        try:
            if not self._stop.is_set():
                await self._run_until_stopped()
            self._stopped = True
            if not self._keeps_object:
                self._status.touch()
                await self._status.written()
        finally:
            publishing.cancel()

    async def _run_until_stopped(self) -> None:
        story = asyncio.create_task(self._story())
        refreshing = asyncio.create_task(self._keep_volumes_fresh())
        stop = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({story, stop}, timeout=self._time_left(), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                self._failure = PodFailure(
                    reason="DeadlineExceeded", message="Pod was active on the node longer than the specified deadline"
                )
            if story in done:
                story.result()
        finally:
            for task in (story, refreshing, stop):
                task.cancel()
            # Shielded, because a cancelled worker must not leave processes behind either.
            await asyncio.shield(self._stop_containers())

    async def _story(self) -> None:
        if self._failure is not None:
            return
        if not await self._volumes_are_there():
            return
        for role, container in containers(self.pod):
            if role is Role.MAIN:
                continue
            runner = self._begin(role, container)
            if role is Role.SIDECAR:
                await runner.started()
                continue
            await asyncio.wait({self._lives[runner.name]})
            end = runner.state.ended
            if end is None or end.exit_code != 0:
                return
        for container in of_role(self.pod, Role.MAIN):
            self._begin(Role.MAIN, container)
        mains = {self._lives[container["name"]] for container in of_role(self.pod, Role.MAIN)}
        ended, _ = await asyncio.wait(mains, return_when=asyncio.FIRST_EXCEPTION)
        for life in ended:
            life.result()  # a fault of ours is not to be lost

    async def _volumes_are_there(self) -> bool:
        """False: they never will be, and the pod has failed."""
        refusal = pod_volumes.refusal_of(
            self.pod,
            host_paths_allowed=self._node.host_paths_allowed,
            sandbox_problem=self._node.sandbox_problem,
        )
        if refusal is not None:
            self._failure = PodFailure(reason="VolumeNotSupported", message=refusal)
            self._record("Warning", "FailedMount", refusal)
            return False
        attempt = 0
        while True:
            try:
                await self._prepare_volumes()
            except (SourceMissing, VolumeRefused, KubeError, OSError, ValueError) as error:
                self._record("Warning", "FailedMount", str(error))
                await asyncio.sleep(BACKOFF.delay_s(attempt))
                attempt += 1
            else:
                self._status.touch()
                return True

    async def _prepare_volumes(self) -> None:
        await pod_volumes.prepare(self.pod, folders=self._folders, facts=self._facts(), sources=self._sources)

    async def _keep_volumes_fresh(self) -> None:
        """Changed ConfigMaps and Secrets, renewed tokens."""
        while True:
            await asyncio.sleep(_REFRESH_S)
            try:
                await self._prepare_volumes()
            except (SourceMissing, VolumeRefused, KubeError, OSError, ValueError) as error:
                _log.warning("volumes_not_refreshed", pod=self.pod["metadata"]["name"], error=str(error))

    def _begin(self, role: Role, container: dict[str, Any]) -> ContainerRunner:
        name = container["name"]
        folder = self._folder / "containers" / name
        folder.mkdir(parents=True, exist_ok=True)
        site = ContainerSite(
            launch=lambda: self._launch(container),
            sandbox=self._node.sandbox,
            prober=Prober(session=self._node.session, pod=self.pod, ports=self._ports),
            log_folder=self._node.log_folder(self.pod) / name,
            message_file=folder / "termination-log",
            grace_s=self._spec_grace_s(),
            record=self._record,
            clock=self._node.clock,
        )
        pod_policy = RestartPolicy(self.pod["spec"].get("restartPolicy") or "Always")
        runner = ContainerRunner(
            container,
            policy=policy_of(role, pod_policy=pod_policy),
            site=site,
            state=self._initial.get(name, CREATING),
            changed=self._status.touch,
        )
        self._runners[name] = runner
        self._lives[name] = asyncio.create_task(runner.run(), name=f"{self.pod['metadata']['name']}/{name}")
        return runner

    async def _launch(self, container: dict[str, Any]) -> Launch:
        check_supported(container)
        sources = await self._sources.read(environment.sources_of(container))
        own = variables_of(self._ports) | shared_host_of(self.pod)
        variables = environment.resolved(container, facts=self._facts(), sources=sources, overrides=own)
        command = command_of(container, variables)
        folder = self._folder / "containers" / container["name"]
        private = folder / "tmp"
        await asyncio.to_thread(_emptied, private)
        gpus = self._node.gpus.take(container, uid=self.pod["metadata"]["uid"])
        whole = {**self._node.environment, **gpus, "HOSTNAME": self.pod["metadata"]["name"], **variables}
        sandboxed = self._node.sandbox is not None
        if not sandboxed:
            whole.setdefault("TMPDIR", str(private))
        message_path = container.get("terminationMessagePath") or "/dev/termination-log"
        return Launch(
            command=command,
            environment=whole,
            folder=Path(container.get("workingDir") or (_TMP if sandboxed else private)),
            mounts=[
                Mount(source=private, target=_TMP),
                Mount(source=folder / "termination-log", target=Path(message_path)),
                *hosts_mounts(self.pod, folder=self._folder),
                *pod_volumes.mounts_of(container, self.pod, folders=self._folders, variables=variables),
            ],
            read_only_root=bool((container.get("securityContext") or {}).get("readOnlyRootFilesystem")),
        )

    async def _stop_containers(self) -> None:
        """The main containers together; when they are gone the sidecars, the last one first."""
        grace_s = self._grace_s if self._stop.is_set() else self._spec_grace_s()
        deadline = asyncio.get_running_loop().time() + grace_s
        self._deadline = deadline
        last = {container["name"] for container in of_role(self.pod, Role.SIDECAR)}
        first = [runner for name, runner in self._runners.items() if name not in last]
        await asyncio.gather(*(runner.stop(deadline=deadline) for runner in first))
        for name in reversed([name for name in self._runners if name in last]):
            await self._runners[name].stop(deadline=deadline)
        await asyncio.gather(*self._lives.values(), return_exceptions=True)

    def _kill_all(self) -> None:
        for runner in self._runners.values():
            runner.kill()

    async def _delete_object(self) -> None:
        metadata = self.pod["metadata"]
        attempt = 0
        while not self._keeps_object:
            try:
                await self._node.client.delete(
                    PODS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"], grace_s=0
                )
            except (NotFound, Conflict):
                return  # it is gone, or another of the same name is there
            except KubeError as error:
                _log.warning("pod_not_deleted", pod=metadata["name"], error=str(error))
                await asyncio.sleep(BACKOFF.delay_s(attempt))
                attempt += 1
            else:
                return

    def _compute_status(self, pod: Object) -> dict[str, Any]:
        waiting = CREATING if not of_role(pod, Role.INIT) and not of_role(pod, Role.SIDECAR) else AFTER_INIT
        states: dict[str, ContainerState] = {container["name"]: waiting for _, container in containers(pod)}
        states |= self._initial | {name: runner.state for name, runner in self._runners.items()}
        return status_of(pod, states, now=self._node.clock(), failure=self._failure, stopped=self._stopped)

    def _facts(self) -> PodFacts:
        return PodFacts(pod=self.pod, node=self._node.name, allocatable=self._node.allocatable)

    def _record(self, kind: Any, reason: str, message: str) -> None:
        self._node.events.record(self.pod, kind, reason, message)

    def _spec_grace_s(self) -> float:
        grace = self.pod["spec"].get("terminationGracePeriodSeconds")
        return float(_DEFAULT_GRACE_S if grace is None else grace)

    def _time_left(self) -> float | None:
        limit = self.pod["spec"].get("activeDeadlineSeconds")
        if limit is None:
            return None
        began = (self.pod.get("status") or {}).get("startTime")
        spent = 0.0 if began is None else self._node.clock() - epoch(began)
        return max(0.0, float(limit) - spent)


def _emptied(folder: Path) -> None:
    """As a container's own file system is, a private /tmp is new for each instance."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o1777)
