"""What tests do with jobs: apply them with the real kubectl, look at what the operator makes of them, play kubelet."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.operator.operator_process import OperatorProcess
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import ClusterAccess
from trimtab.kube.resources import EVENTS, PODS, RLJOBS, Resource

TIMEOUT_S = 400.0
Seen = TypeVar("Seen")


def tiny_job(name: str = "tiny", *, replicas: int = 1, **spec: Any) -> dict[str, Any]:
    """A job of three pods or so; nothing of what it names has to exist unless its pods are run."""
    return {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "maxSteps": 10,
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {"prompts": [{"name": "train", "jsonl": {"uri": "/data/prompts.jsonl"}}], "batchSize": 8},
            "policies": [{"name": "solver", "model": {"uri": "/models/tiny"}}],
            "pools": [{"name": "home", "replicas": replicas, "gracePeriodSeconds": 5}],
            **spec,
        },
    }


def sleeping_job(name: str = "tiny", **trainer: Any) -> dict[str, Any]:
    """One whose pods sleep: there is no model, and a pod that began to work would end the job."""
    return tiny_job(
        name,
        policies=[{"name": "solver", "model": {"uri": "/models/tiny"}, "trainer": _asleep("trainer") | trainer}],
        pools=[{"name": "home", "replicas": 1, "gracePeriodSeconds": 5, **_asleep("worker")}],
        data=tiny_job()["spec"]["data"] | _asleep("dataflow"),
    )


def _asleep(container: str) -> dict[str, Any]:
    return {"template": {"spec": {"containers": [{"name": container, "command": ["sleep", "3600"]}]}}}


@dataclass(frozen=True, kw_only=True)
class Scene:
    plane: ControlPlane
    namespace: str
    access: ClusterAccess
    operator: OperatorProcess

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin).stdout

    def apply(self, *objects: dict[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.kubectl("apply", "-f", "-", stdin=json.dumps(listed))

    def get(self, resource: Resource, name: str) -> dict[str, Any] | None:
        """Asked directly: a kubectl for every look would take most of the tests' time."""
        try:
            return self._request(resource.path(namespace=self.namespace, name=name))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def must_get(self, resource: Resource, name: str) -> dict[str, Any]:
        found = self.get(resource, name)
        assert found is not None, f"{resource.kind} {name} is not there"
        return found

    def listed(self, resource: Resource) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self._request(resource.path(namespace=self.namespace))["items"]
        return items

    def pods(self, part: str = "") -> dict[str, dict[str, Any]]:
        """Those that are not on their way out and whose name has the part."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.listed(PODS)
            if part in pod["metadata"]["name"] and "deletionTimestamp" not in pod["metadata"]
        }

    def has_pods(self, *names: str, timeout_s: float = TIMEOUT_S) -> dict[str, dict[str, Any]]:
        """Waits until exactly these are there."""
        return self.until(self.pods, lambda pods: set(pods) == set(names), timeout_s=timeout_s)

    def condition(self, resource: Resource, name: str, kind: str) -> dict[str, Any]:
        found = self.get(resource, name) or {}
        conditions = (found.get("status") or {}).get("conditions") or ()
        return next((entry for entry in conditions if entry["type"] == kind), {})

    def says(self, resource: Resource, name: str, kind: str, reason: str, *, timeout_s: float = TIMEOUT_S) -> str:
        """Waits until the condition has the reason; gives its message. A job that has failed comes to no other."""

        def holds(condition: dict[str, Any]) -> bool:
            found = condition.get("reason")
            if found != reason and kind == "Succeeded" and condition.get("status") == "False":
                raise AssertionError(f"{name} has failed: {found}: {condition.get('message')}")
            return bool(found == reason)

        met = self.until(lambda: self.condition(resource, name, kind), holds, timeout_s=timeout_s)
        return str(met.get("message", ""))

    def patch_pod_status(self, name: str, status: dict[str, Any]) -> None:
        """What a kubelet would say."""
        self.kubectl(
            "patch", "pod", name, "--subresource=status", "--type=strategic", "-p", json.dumps({"status": status})
        )

    def make_ready(self, *names: str) -> None:
        for name in names:
            condition = {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            self.patch_pod_status(name, {"phase": "Running", "conditions": [condition]})

    def reasons(self, name: str) -> set[str]:
        """Of the events about the object of this name."""
        return {event["reason"] for event in self.listed(EVENTS) if event["involvedObject"]["name"] == name}

    def job_gone(self, name: str) -> None:
        self.until(lambda: self.get(RLJOBS, name), lambda job: job is None)

    def until(self, look: Callable[[], Seen], holds: Callable[[Seen], bool], *, timeout_s: float = TIMEOUT_S) -> Seen:
        deadline = time.monotonic() + timeout_s
        while not holds(seen := look()):
            if self.operator.ended() is not None:
                raise AssertionError(f"the operator has ended:\n{self.operator.log[-1500:]}")
            if time.monotonic() > deadline:
                shown = json.dumps(seen, indent=1, default=str)[:1500]
                raise AssertionError(f"not within {timeout_s} s; last seen: {shown}\n{self.operator.log[-1500:]}")
            time.sleep(0.05)
        return seen

    def _request(self, path: str) -> dict[str, Any]:
        tls = self.access.tls.context()
        with urllib.request.urlopen(self.access.server + path, context=tls, timeout=TIMEOUT_S) as answer:
            found: dict[str, Any] = json.load(answer)
        return found
