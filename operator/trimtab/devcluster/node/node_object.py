"""The Node object and its heartbeat: how the cluster sees this machine."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import LEASES, NODES
from trimtab.kube.timestamps import micro_timestamp, timestamp

_log = structlog.get_logger(__name__)
_MANAGER = "trimtab-devcluster"
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_S = 40
_RENEW_EVERY_S = 10.0
_NOT_READY = "node.kubernetes.io/not-ready"


def node_labels(name: str) -> dict[str, str]:
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": machine,
    }


class NodeObject:
    """`capacity` is also what pods may have of it: nothing is kept back for the system."""

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        capacity: Mapping[str, str],
        labels: Mapping[str, str],
        kubelet_port: int,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._name = name
        self._capacity = dict(capacity)
        self._labels = dict(labels)
        self._port = kubelet_port
        self._clock = clock
        self._since: tuple[bool, str] | None = None

    async def register(self) -> None:
        body = {"metadata": {"name": self._name, "labels": self._labels}}
        await self._client.apply(NODES, body, field_manager=_MANAGER)
        await self.report(ready=True, reason="KubeletReady", message="the development node runs pods as processes")
        await self._open()

    async def _open(self) -> None:
        """Take away the taint that admission gives to new nodes, as the node lifecycle controller does."""
        node = await self._client.get(NODES, self._name)
        taints = node["spec"].get("taints") or []
        kept = [taint for taint in taints if taint["key"] != _NOT_READY]
        if kept != taints:
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            await self._client.patch(NODES, self._name, {"metadata": version, "spec": {"taints": kept or None}})

    async def report(self, *, ready: bool, reason: str, message: str) -> None:
        now = timestamp(self._clock())
        if self._since is None or self._since[0] is not ready:
            self._since = (ready, now)
        status: dict[str, Any] = {
            "capacity": self._capacity,
            "allocatable": self._capacity,
            "addresses": [
                {"type": "InternalIP", "address": LOOPBACK},
                {"type": "Hostname", "address": self._name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            "nodeInfo": _node_info(),
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "False",
                    "reason": reason,
                    "message": message,
                    "lastHeartbeatTime": now,
                    "lastTransitionTime": self._since[1],
                }
            ],
        }
        body = {"metadata": {"name": self._name}, "status": status}
        await self._client.apply(NODES, body, field_manager=_MANAGER, subresource="status")

    async def renew_lease(self) -> None:
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": _LEASE_S,
            "renewTime": micro_timestamp(self._clock()),
        }
        body = {"metadata": {"name": self._name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
        await self._client.apply(LEASES, body, namespace=_LEASE_NAMESPACE, field_manager=_MANAGER)

    async def run(self) -> None:
        while True:
            try:
                await self.renew_lease()
            except KubeError as error:
                _log.warning("lease_not_renewed", error=str(error))
            await asyncio.sleep(_RENEW_EVERY_S)


def _node_info() -> dict[str, str]:
    return {
        "architecture": node_labels("")["kubernetes.io/arch"],
        "operatingSystem": platform.system().lower(),
        "osImage": platform.platform(),
        "kernelVersion": platform.release(),
        "kubeletVersion": "trimtab-dev",
        "containerRuntimeVersion": "process://",
        "kubeProxyVersion": "",
        "bootID": "",
        "machineID": "",
        "systemUUID": "",
    }
