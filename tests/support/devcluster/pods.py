"""Pods as the API server has them, for tests of pure functions."""

from __future__ import annotations

from typing import Any


def a_pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    named = [{"name": "main", **container} for container in containers] or [{"name": "main"}]
    return {
        "metadata": {
            "name": "worker-0",
            "namespace": "team",
            "uid": "uid-0",
            "labels": {"role": "rollout"},
            "annotations": {"note": 'say "hi"'},
            "creationTimestamp": "2026-11-01T00:00:00Z",
            "resourceVersion": "1",
        },
        "spec": {"containers": named, "restartPolicy": "Always", **spec},
        "status": {},
    }
