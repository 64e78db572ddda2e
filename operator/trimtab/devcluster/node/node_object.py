"""The Node object and its heartbeat, by which the scheduler and the node lifecycle controller see this machine."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Mapping
from typing import Any

import structlog

from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import LEASES, NODES, Object
from trimtab.kube.timestamps import micro_timestamp, timestamp

_log = structlog.get_logger(__name__)
_MANAGER = "trimtab-devcluster"
_LEASE_NAMESPACE = "kube-node-lease"
_LEASE_S = 40
_RENEW_EVERY_S = 10.0
# The scheduler leaves out a node under pressure; here nothing is measured, so there is none.
_PRESSURES = ("MemoryPressure", "DiskPressure", "PIDPressure")


class NodeObject:
    """`capacity` is also what pods may have of it: nothing is kept back for the system."""

    def __init__(
        self,
        client: KubeClient,
        *,
        name: str,
        capacity: Mapping[str, str],
        kubelet_port: int,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._name = name
        self._capacity = dict(capacity)
        self._port = kubelet_port
        self._clock = clock

    async def register(self) -> None:
        """Admission taints a new node as not ready; the node lifecycle controller takes the taint away."""
        body = {"metadata": {"name": self._name, "labels": _labels(self._name)}}
        await self._client.apply(NODES, body, field_manager=_MANAGER)
        await self._report_ready()
        await self._renew_lease()

    async def report_stopped(self) -> None:
        await self._report(ready=False, reason="NodeStopped", message="the development node was stopped")

    async def run(self) -> None:
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            try:
                await self._renew_lease()
                if not _is_ready(await self._client.get(NODES, self._name)):
                    # The node lifecycle controller says Unknown of a machine that was suspended for a while.
                    await self._report_ready()
            except KubeError as error:
                _log.warning("heartbeat_failed", error=str(error))

    async def _report_ready(self) -> None:
        await self._report(ready=True, reason="KubeletReady", message="the development node runs pods as processes")

    async def _report(self, *, ready: bool, reason: str, message: str) -> None:
        now = timestamp(self._clock())

        def condition(kind: str, *, holds: bool, reason: str, message: str) -> dict[str, str]:
            return {
                "type": kind,
                "status": str(holds),
                "reason": reason,
                "message": message,
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }

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
                *(condition(kind, holds=False, reason="NotMeasured", message="") for kind in _PRESSURES),
                condition("Ready", holds=ready, reason=reason, message=message),
            ],
        }
        body = {"metadata": {"name": self._name}, "status": status}
        await self._client.apply(NODES, body, field_manager=_MANAGER, subresource="status")

    async def _renew_lease(self) -> None:
        spec = {
            "holderIdentity": self._name,
            "leaseDurationSeconds": _LEASE_S,
            "renewTime": micro_timestamp(self._clock()),
        }
        body = {"metadata": {"name": self._name, "namespace": _LEASE_NAMESPACE}, "spec": spec}
        await self._client.apply(LEASES, body, namespace=_LEASE_NAMESPACE, field_manager=_MANAGER)


def _is_ready(node: Object) -> bool:
    conditions = (node.get("status") or {}).get("conditions") or ()
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def _labels(name: str) -> dict[str, str]:
    return {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": platform.system().lower(),
        "kubernetes.io/arch": _architecture(),
    }


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _node_info() -> dict[str, str]:
    return {
        "architecture": _architecture(),
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
