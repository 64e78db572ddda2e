"""The other cluster of a test: a namespace in it with the shipped Role, a kubeconfig for that account over a line that
can be cut, and what is there.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

import trimtab.operator.settings
from tests.support.operator.scene import Scene
from tests.support.remote.cuttable_line import CuttableLine
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK
from trimtab.kube.access import load_access
from trimtab.kube.resources import CONFIG_MAPS, PODS, SECRETS

SECRET = "far-cluster"
KEY = "kubeconfig"
_ROLE = Path(trimtab.operator.settings.__file__).parent / "rbac" / "remote.yaml"


@dataclass(frozen=True, kw_only=True)
class FarSide:
    plane: ControlPlane
    namespace: str
    line: CuttableLine
    scene: Scene
    """The same things that one does at home, done there."""

    @classmethod
    def prepare(cls, plane: ControlPlane, line: CuttableLine, home: Scene, *, namespace: str) -> FarSide:
        plane.kubectl("create", "namespace", namespace)
        plane.kubectl("apply", "-n", namespace, "-f", str(_ROLE))
        there = replace(home, plane=plane, namespace=namespace, access=load_access(plane.kubeconfig()))
        return cls(plane=plane, namespace=namespace, line=line, scene=there)

    @property
    def role(self) -> Path:
        return _ROLE

    def kubeconfig(self) -> dict[str, Any]:
        """With a token of the account that the shipped Role is for, and nothing else."""
        token = self.plane.kubectl("create", "token", "trimtab-remote", "-n", self.namespace).stdout.strip()
        authority = base64.b64encode(self.plane.authority_file.read_bytes()).decode()
        server = f"https://{LOOPBACK}:{self.line.port}"
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "far", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": "remote", "user": {"token": token}}],
            "contexts": [{"name": "far", "context": {"cluster": "far", "user": "remote"}}],
            "current-context": "far",
        }

    def pool(self, *, replicas: int = 1, **fields: Any) -> dict[str, Any]:
        """A pool of a job's manifest that is here."""
        cluster = {"kubeconfigSecret": {"name": SECRET, "key": KEY}, "namespace": self.namespace}
        lost_after = fields.pop("lostAfterSeconds", None)
        if lost_after is not None:
            cluster["lostAfterSeconds"] = lost_after
        return {"name": "far", "replicas": replicas, "gracePeriodSeconds": 5, "cluster": cluster, **fields}

    def pods(self, part: str = "") -> dict[str, dict[str, Any]]:
        """By the name that they have at home."""
        return {name.rpartition("-")[0]: pod for name, pod in self.scene.pods(part).items()}

    def has_pods(self, *names: str) -> dict[str, dict[str, Any]]:
        return self.scene.until(self.pods, lambda pods: set(pods) == set(names))

    def left(self) -> list[str]:
        """Everything of ours that is here."""
        return [
            f"{resource.kind} {item['metadata']['name']}"
            for resource in (PODS, CONFIG_MAPS, SECRETS)
            for item in self.scene.listed(resource)
            if item["metadata"]["name"] != "kube-root-ca.crt"
        ]

    def is_empty(self) -> None:
        self.scene.until(self.left, lambda left: left == [])


def kubeconfig_secret(config: Any, *, name: str = SECRET) -> dict[str, Any]:
    text = config if isinstance(config, str) else yaml.safe_dump(config)
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": {KEY: text}}
