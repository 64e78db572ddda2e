"""Ports of pods that share one host: each named container port gets a free loopback port of its own.

Every container of the pod finds it in TRIMTAB_PORT_<NAME>, over a value that the manifest gives for clusters where the
declared number can be used as it is. Probes are sent to the port that was chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from trimtab.devcluster.pod.spec import containers
from trimtab.embedded.ports import LOOPBACK, free_ports
from trimtab.kube.resources import Object

SHARED_PORTS_ANNOTATION = "rl.trimtab.dev/shared-ports"
"""Pods of a namespace with the same value here are given the same numbers: one listens, the others dial it."""
SHARED_HOST_VARIABLE = "TRIMTAB_HOST_SHARED"
"""In such pods, where they find each other: there is no DNS here, and all pods have the host's address."""


def variable_of(port_name: str) -> str:
    return "TRIMTAB_PORT_" + port_name.upper().replace("-", "_")


def variables_of(ports: Mapping[str, int]) -> dict[str, str]:
    return {variable_of(name): str(number) for name, number in ports.items()}


def shared_host_of(pod: Object) -> dict[str, str]:
    shared = SHARED_PORTS_ANNOTATION in (pod["metadata"].get("annotations") or {})
    return {SHARED_HOST_VARIABLE: LOOPBACK} if shared else {}


def declared(pod: Object) -> list[dict[str, Any]]:
    return [port for _, container in containers(pod) for port in container.get("ports") or () if port.get("name")]


def probed_port(reference: str | int, *, pod: Object, ports: Mapping[str, int]) -> int:
    """A probe's port by name, or by the declared number; a number that was not declared stands for itself."""
    for port in declared(pod):
        if reference in (port["name"], port["containerPort"]):
            return ports[port["name"]]
    if isinstance(reference, str) and not reference.isdigit():
        raise ValueError(f"the probe's port {reference!r} is no port of the pod's containers")
    return int(reference)


class PortBook:
    """Which ports have been given to whom, so that no two pods are given the same one by chance."""

    def __init__(self, *, choose: Callable[[int], list[int]] = free_ports) -> None:
        self._choose = choose
        self._groups: dict[tuple[str, str], dict[str, int]] = {}
        self._users: dict[tuple[str, str], set[str]] = {}

    def take(self, pod: Object) -> dict[str, int]:
        """The pod's ports by name; the same ones however often it is asked."""
        group = _group(pod)
        self._users.setdefault(group, set()).add(pod["metadata"]["uid"])
        given = self._groups.setdefault(group, {})
        for port in declared(pod):
            if port["name"] not in given:
                given[port["name"]] = int(port.get("hostPort") or self._unused())
        return {port["name"]: given[port["name"]] for port in declared(pod)}

    def release(self, pod: Object) -> None:
        group = _group(pod)
        users = self._users.get(group, set())
        users.discard(pod["metadata"]["uid"])
        if not users:
            self._users.pop(group, None)
            self._groups.pop(group, None)

    def _unused(self) -> int:
        taken = {number for group in self._groups.values() for number in group.values()}
        # One more than are taken: at least one of so many distinct ports is not among those.
        return next(number for number in self._choose(len(taken) + 1) if number not in taken)


def _group(pod: Object) -> tuple[str, str]:
    metadata = pod["metadata"]
    shared = (metadata.get("annotations") or {}).get(SHARED_PORTS_ANNOTATION)
    return (metadata["namespace"], shared) if shared else ("", metadata["uid"])
