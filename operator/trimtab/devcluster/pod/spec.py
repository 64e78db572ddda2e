"""Reading a pod's JSON: which containers it has, in which role, and what it asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any

from trimtab.devcluster.quantity import quantity
from trimtab.kube.resources import Object


class Role(Enum):
    """INIT runs to its end before the next; SIDECAR is started before the main containers and stopped after them."""

    INIT = "init"
    SIDECAR = "sidecar"
    MAIN = "main"


def containers(pod: Object) -> Iterator[tuple[Role, dict[str, Any]]]:
    """In the order in which they are started."""
    for container in pod["spec"].get("initContainers") or ():
        yield Role.SIDECAR if container.get("restartPolicy") == "Always" else Role.INIT, container
    for container in pod["spec"].get("containers") or ():
        yield Role.MAIN, container


def of_role(pod: Object, role: Role) -> list[dict[str, Any]]:
    return [container for own, container in containers(pod) if own is role]


def is_finished(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def requests(pod: Object) -> dict[str, Decimal]:
    """What the pod needs at its peak: the main containers and sidecars together, or an init container beside the
    sidecars started before it."""
    running: dict[str, Decimal] = {}
    peak: dict[str, Decimal] = {}
    for role, container in containers(pod):
        asked = container_requests(container)
        if role is Role.INIT:
            peak = _largest(peak, _sum(running, asked))
        else:
            running = _sum(running, asked)
    return _largest(peak, running)


def container_requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    """Limits count as requests where no request is given."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}


def _sum(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: one.get(name, Decimal()) + other.get(name, Decimal()) for name in {*one, *other}}


def _largest(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: max(one.get(name, Decimal()), other.get(name, Decimal())) for name in {*one, *other}}
