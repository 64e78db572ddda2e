"""What tests do with pods: apply them with the real kubectl, wait for their states, read their logs, find processes."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import ClusterAccess
from trimtab.kube.resources import EVENTS, PODS, Resource

TIMEOUT_S = 300.0
Seen = TypeVar("Seen")


def container(shell: str, *, name: str = "main", **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "not-used", "command": ["sh", "-c", shell], **fields}


def pod(name: str, *containers: dict[str, Any], labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"containers": list(containers), "terminationGracePeriodSeconds": 5, **spec},
    }


@dataclass(frozen=True)
class Bench:
    plane: ControlPlane
    namespace: str = field(kw_only=True)
    node: DevelopmentNode = field(kw_only=True)
    access: ClusterAccess = field(kw_only=True)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex, kw_only=True)
    """In the command line of processes that tests look for."""

    def kubectl(self, *arguments: str, stdin: str | None = None, check: bool = True) -> str:
        done = self.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin, check=check)
        return done.stdout if done.returncode == 0 else done.stderr

    def apply(self, *objects: dict[str, Any]) -> None:
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}))

    def tries(self, manifest: dict[str, Any]) -> str:
        """What kubectl says, whether it is let in or not."""
        return self.kubectl("apply", "-f", "-", stdin=json.dumps(manifest), check=False)

    def get(self, name: str, resource: Resource = PODS) -> dict[str, Any]:
        """Asked directly: a kubectl for every look would take most of the tests' time."""
        return self._read(resource.path(namespace=self.namespace if resource.namespaced else None, name=name))

    def listed(self, resource: Resource) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._read(resource.path(namespace=self.namespace))["items"]
        return items

    def _read(self, path: str) -> dict[str, Any]:
        tls = self.access.tls.context()
        with urllib.request.urlopen(self.access.server + path, context=tls, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def state(self, name: str, container: str = "main") -> dict[str, Any]:
        """The container's status; empty while there is none."""
        status = self.get(name).get("status") or {}
        entries = [*status.get("containerStatuses", ()), *status.get("initContainerStatuses", ())]
        return next((entry for entry in entries if entry["name"] == container), {})

    def until(self, look: Callable[[], Seen], holds: Callable[[Seen], bool], *, timeout_s: float = TIMEOUT_S) -> Seen:
        deadline = time.monotonic() + timeout_s
        while not holds(seen := look()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout_s} s; last seen: {json.dumps(seen, indent=1, default=str)}")
            time.sleep(0.05)
        return seen

    def phase(self, name: str, *phases: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
        """Wait until the pod is in one of the phases."""
        return self.until(lambda: self.get(name), lambda pod: pod["status"].get("phase") in phases, timeout_s=timeout_s)

    def ready(self, name: str) -> None:
        self.kubectl("wait", "--for=condition=Ready", f"pod/{name}", f"--timeout={TIMEOUT_S:.0f}s")

    def gone(self, name: str, kind: str = "pod") -> None:
        self.kubectl("wait", "--for=delete", f"{kind}/{name}", f"--timeout={TIMEOUT_S:.0f}s")

    def logs(self, name: str, *options: str) -> str:
        return self.kubectl("logs", name, *options)

    def says(self, name: str, text: str, *options: str) -> str:
        """Wait until the log has the text."""
        return self.until(lambda: self.kubectl("logs", name, *options, check=False), lambda log: text in log)

    def has_events(self, name: str, *reasons: str) -> None:
        """Wait until there are events about the pod with all these reasons: they are written beside the work."""

        def found() -> set[str]:
            return {event["reason"] for event in self.listed(EVENTS) if event["involvedObject"]["name"] == name}

        self.until(found, lambda seen: seen >= set(reasons))

    def processes(self) -> list[int]:
        """Processes of this machine whose command line has the mark."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if self.mark.encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


assert sys.platform == "linux", "the development node's tests look into /proc"
