"""Stands in for what one machine without a network of pods lacks: pods of Deployments and StatefulSets with fixed
names, the admission that gives a pod its token, claims, and names of Services, which all lead to this machine.
"""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.ports import LOOPBACK

_REVISION = "controller-revision-hash"
_TOKENS = "/var/run/secrets/kubernetes.io/serviceaccount"

Object = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Workloads:
    plane: ControlPlane
    namespace: str
    claims: Path
    """Where the volumes of StatefulSets lie."""

    def settle(self) -> None:
        """Pods are made of every template, those of an older template or of none are deleted."""
        wanted = {pod["metadata"]["name"]: pod for owner in self._owners() for pod in self._pods_of(owner)}
        present = {entry["metadata"]["name"]: entry for entry in self._list("pods")}
        for name, pod in present.items():
            revision = pod["metadata"]["labels"].get(_REVISION)
            if name not in wanted or wanted[name]["metadata"]["labels"][_REVISION] != revision:
                self._kubectl("delete", "pod", name, "--wait=true", "--timeout=300s")
        kept = {entry["metadata"]["name"] for entry in self._list("pods")}
        for name in wanted.keys() - kept:
            self._kubectl("create", "-f", "-", stdin=json.dumps(wanted[name]))

    def host_aliases(self) -> list[Object]:
        """Every Service by the name that pods dial."""
        names = [f"{entry['metadata']['name']}.{self.namespace}.svc" for entry in self._list("services")]
        return [{"ip": LOOPBACK, "hostnames": names}] if names else []

    def _owners(self) -> list[Object]:
        return [*self._list("deployments"), *self._list("statefulsets")]

    def _pods_of(self, owner: Object) -> list[Object]:
        template = owner["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
        pods = []
        for number in range(owner["spec"]["replicas"]):
            pod = copy.deepcopy({"apiVersion": "v1", "kind": "Pod", **template})
            name = f"{owner['metadata']['name']}-{number}"
            labels = pod["metadata"].get("labels", {}) | {_REVISION: revision}
            pod["metadata"] |= {"name": name, "namespace": self.namespace, "labels": labels}
            pod["spec"]["hostAliases"] = self.host_aliases()
            self._add_claims(owner, pod)
            if pod["spec"].get("automountServiceAccountToken"):
                _add_token(pod)
            if owner["kind"] == "StatefulSet":
                # A server in another pod listens where its Service says.
                for port in (port for container in pod["spec"]["containers"] for port in container["ports"]):
                    port["hostPort"] = port["containerPort"]
            pods.append(pod)
        return pods

    def _add_claims(self, owner: Object, pod: Object) -> None:
        for template in owner["spec"].get("volumeClaimTemplates") or ():
            name = f"{template['metadata']['name']}-{pod['metadata']['name']}"
            claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": template["spec"]}
            claim["metadata"] = {"name": name, "namespace": self.namespace}
            self._kubectl("apply", "-f", "-", stdin=json.dumps(claim))
            folder = {"path": str(self.claims / name), "type": "DirectoryOrCreate"}
            pod["spec"].setdefault("volumes", []).append({"name": template["metadata"]["name"], "hostPath": folder})

    def _list(self, kind: str) -> list[Object]:
        entries: list[Object] = json.loads(self._kubectl("get", kind, "-o", "json"))["items"]
        return entries

    def _kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self.plane.kubectl("-n", self.namespace, *arguments, stdin=stdin).stdout


def _add_token(pod: Object) -> None:
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ]
    pod["spec"]["volumes"].append({"name": "kube-api-access", "projected": {"sources": sources}})
    for container in pod["spec"]["containers"]:
        container["volumeMounts"].append({"name": "kube-api-access", "mountPath": _TOKENS, "readOnly": True})
