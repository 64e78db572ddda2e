"""A ResourceQuota for GPUs, by which a real API server refuses pods; Kubernetes' own controller counts what is used."""

from __future__ import annotations

import json

from tests.support.operator.scene import Scene
from trimtab.kube.resources import Resource

_QUOTAS = Resource(plural="resourcequotas", kind="ResourceQuota")
_COUNTED = "requests.nvidia.com/gpu"


class GpuQuota:
    """The quota controller has to run."""

    def __init__(self, scene: Scene, *, gpus: int) -> None:
        self._scene = scene
        scene.apply(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": {"name": "gpus"},
                "spec": {"hard": {_COUNTED: str(gpus)}},
            }
        )
        self._is_enforced(gpus)

    def raise_to(self, gpus: int) -> None:
        patch = json.dumps({"spec": {"hard": {_COUNTED: str(gpus)}}})
        self._scene.kubectl("patch", "resourcequota", "gpus", "--type=merge", f"--patch={patch}")
        self._is_enforced(gpus)

    def _is_enforced(self, gpus: int) -> None:
        """Admission goes by the quota's status."""
        self._scene.until(
            lambda: (self._scene.must_get(_QUOTAS, "gpus").get("status") or {}).get("hard"),
            lambda hard: hard == {_COUNTED: str(gpus)},
        )
