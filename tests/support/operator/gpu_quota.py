"""A ResourceQuota for GPUs, by which a real API server refuses pods; a thread plays the quota controller.

Admission adds what it lets in; that a pod has gone is for the controller to notice.
"""

from __future__ import annotations

import json
import threading
import urllib.error
import urllib.request
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self

from tests.support.operator.scene import TIMEOUT_S, Scene
from trimtab.kube.resources import Resource

_QUOTAS = Resource(plural="resourcequotas", kind="ResourceQuota")
_GPU = "nvidia.com/gpu"
_COUNTED = f"requests.{_GPU}"
_LOOK_S = 0.1


class GpuQuota:
    def __init__(self, scene: Scene, *, gpus: int) -> None:
        self._scene = scene
        self._gpus = gpus
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._control, daemon=True)

    def __enter__(self) -> Self:
        named = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
        self._scene.apply(named | {"spec": {"hard": {_COUNTED: str(self._gpus)}}})
        self._count()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()

    def raise_to(self, gpus: int) -> None:
        self._gpus = gpus
        self._patch({"spec": {"hard": {_COUNTED: str(gpus)}}})

    def _control(self) -> None:
        while not self._over.wait(_LOOK_S):
            self._count()

    def _count(self) -> None:
        quota = self._scene.must_get(_QUOTAS, "gpus")
        used = sum(_requested(pod) for pod in self._scene.pods().values())
        status = {"hard": {_COUNTED: str(self._gpus)}, "used": {_COUNTED: str(used)}}
        if (quota.get("status") or {}) == status:
            return
        # Only if admission has let in nobody since: it would be forgotten.
        version = {"resourceVersion": quota["metadata"]["resourceVersion"]}
        try:
            self._patch({"metadata": version, "status": status}, subresource="status")
        except urllib.error.HTTPError as refusal:
            if refusal.code != HTTPStatus.CONFLICT:
                raise

    def _patch(self, body: dict[str, Any], *, subresource: str | None = None) -> None:
        """Not by kubectl, whose file the test's own thread may be writing."""
        path = _QUOTAS.path(namespace=self._scene.namespace, name="gpus", subresource=subresource)
        request = urllib.request.Request(
            self._scene.access.server + path,
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/merge-patch+json"},
            method="PATCH",
        )
        with urllib.request.urlopen(request, context=self._scene.access.tls.context(), timeout=TIMEOUT_S):
            pass


def _requested(pod: dict[str, Any]) -> int:
    containers = pod["spec"]["containers"]
    return sum(int((entry.get("resources") or {}).get("requests", {}).get(_GPU, 0)) for entry in containers)
