"""The development node as a whole: its Node object, its kubelet and the API that serves logs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import psutil
import structlog

from trimtab.devcluster.container.command import host_environment
from trimtab.devcluster.container.gpus import RESOURCE, GpuBook, host_gpus
from trimtab.devcluster.container.sandbox import find_sandbox
from trimtab.devcluster.node.kubelet import Kubelet
from trimtab.devcluster.node.kubelet_api import KubeletApi, server_tls
from trimtab.devcluster.node.node_object import NodeObject
from trimtab.devcluster.pod.ports import PortBook
from trimtab.devcluster.pod.worker import NodeSite
from trimtab.devcluster.quantity import quantity
from trimtab.devcluster.volumes.shared_memory import drop_memory_folder, take_memory_folder
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.events import EventRecorder
from trimtab.kube.reflector import Reflector
from trimtab.kube.resources import PODS

_log = structlog.get_logger(__name__)
_COMPONENT = "trimtab-devcluster"
_PODS = 250


@dataclass(frozen=True, kw_only=True)
class NodeSettings:
    name: str
    folder: Path
    kubeconfig: Path
    authority: Path
    certificate: Path
    key: Path
    port: int
    capacity: Mapping[str, str]
    """Over what the machine has; also resources that it does not have."""
    host_paths_allowed: bool = False


async def run_node(settings: NodeSettings) -> None:
    """Until it is cancelled; then all processes are ended, and the pods stay for the next start."""
    access = load_access(settings.kubeconfig)
    async with (
        KubeClient(access, user_agent=_COMPONENT) as client,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True, limit=0)) as session,
    ):
        capacity = machine_capacity(os.environ, folder=settings.folder) | dict(settings.capacity)
        allocatable = {name: quantity(amount) for name, amount in capacity.items()}
        sandbox, problem = find_sandbox()
        if sandbox is None:
            _log.warning("no_sandbox", problem=problem, effect="pods with volumes are refused")
        events = EventRecorder(
            client, component=_COMPONENT, instance=settings.name, host=settings.name, clock=time.time
        )
        server = urlsplit(access.server)
        site = NodeSite(
            name=settings.name,
            client=client,
            session=session,
            folder=settings.folder,
            memory=take_memory_folder(settings.folder),
            sandbox=sandbox,
            sandbox_problem=problem,
            host_paths_allowed=settings.host_paths_allowed,
            environment=host_environment(os.environ)
            | {"KUBERNETES_SERVICE_HOST": server.hostname or "", "KUBERNETES_SERVICE_PORT": str(server.port)},
            allocatable=allocatable,
            ports=PortBook(),
            gpus=GpuBook(host_gpus(os.environ)),
            events=events,
            clock=time.time,
        )
        own_pods = Reflector(client, PODS, field_selector=f"spec.nodeName={settings.name}")
        kubelet = Kubelet(own_pods, node=site)
        tls = server_tls(certificate=settings.certificate, key=settings.key, client_authority=settings.authority)
        api = KubeletApi(kubelet, tls=tls, port=settings.port)
        node = NodeObject(client, name=settings.name, capacity=capacity, kubelet_port=settings.port, clock=time.time)
        await node.register()
        await api.start()
        _log.info("node_ready", node=settings.name, sandbox=sandbox is not None, capacity=capacity)
        try:
            async with asyncio.TaskGroup() as group:
                for part in (own_pods, kubelet, events, node):
                    group.create_task(part.run())
        finally:
            _log.info("node_stopping", node=settings.name)
            drop_memory_folder(site.memory)
            await api.stop()
            with suppress(KubeError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await node.report_stopped()


def machine_capacity(host: Mapping[str, str], *, folder: Path) -> dict[str, str]:
    return {
        "cpu": str(os.cpu_count() or 1),
        "memory": str(psutil.virtual_memory().total),
        "ephemeral-storage": str(shutil.disk_usage(folder).free),
        "pods": str(_PODS),
        RESOURCE: str(len(host_gpus(host))),
    }
