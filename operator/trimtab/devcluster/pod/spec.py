"""Reading a pod's JSON: which containers it has, in which role, what it asks for, and what it may learn about itself by
fieldRef and resourceFieldRef.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

from trimtab.devcluster.quantity import quantity
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.resources import Object

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


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


def container_requests(container: Mapping[str, Any]) -> dict[str, Decimal]:
    """Limits count as requests where no request is given."""
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}


class UnknownField(ValueError):
    """A reference to something this node cannot tell."""


@dataclass(frozen=True, kw_only=True)
class PodFacts:
    """A pod as the API server has it, and where it runs."""

    pod: Object
    node: str
    allocatable: Mapping[str, Decimal]

    def field(self, path: str) -> str:
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        if match := _SUBSCRIPT.fullmatch(path):
            return str((metadata.get(match[1]) or {}).get(match[2], ""))
        match path:
            case "metadata.name" | "metadata.namespace" | "metadata.uid":
                return str(metadata[path.removeprefix("metadata.")])
            case "metadata.labels" | "metadata.annotations":
                entries = metadata.get(path.removeprefix("metadata.")) or {}
                return "\n".join(f'{name}="{_quoted(value)}"' for name, value in sorted(entries.items()))
            case "spec.nodeName":
                return self.node
            case "spec.serviceAccountName":
                return str(spec.get("serviceAccountName") or "default")
            case "status.podIP" | "status.podIPs" | "status.hostIP" | "status.hostIPs":
                return LOOPBACK
        raise UnknownField(f"fieldRef {path!r} is not known on this node")

    def resource(self, reference: Mapping[str, Any], *, container: Mapping[str, Any]) -> str:
        """Limits and requests, rounded up to the divisor; where no limit is set it is what the node has."""
        kind, _, name = str(reference["resource"]).partition(".")
        resources = container.get("resources") or {}
        if kind == "limits":
            limit = (resources.get("limits") or {}).get(name)
            amount = self.allocatable.get(name, Decimal()) if limit is None else quantity(limit)
        elif kind == "requests":
            amount = container_requests(container).get(name, Decimal())
        else:
            raise UnknownField(f"resourceFieldRef {reference['resource']!r} is not known on this node")
        divisor = quantity(reference.get("divisor") or "1")
        return str(math.ceil(amount / (divisor or 1)))


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
