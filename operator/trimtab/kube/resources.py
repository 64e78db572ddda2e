"""Kinds as the API server addresses them, and the paths of their objects."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

_PART = re.compile(r"[-.:_~A-Za-z0-9]{1,253}")

Object = dict[str, Any]
"""An object as JSON has it."""


@dataclass(frozen=True, kw_only=True)
class Resource:
    """One kind in one version. `group` is empty for the core group."""

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, *, namespace: str | None = None, name: str | None = None, subresource: str | None = None) -> str:
        """Without a namespace, a namespaced kind is addressed in all of them, which only lists and watches may do."""
        if namespace is not None and not self.namespaced:
            raise ValueError(f"{self.plural} have no namespace, and {namespace!r} was given")
        if name is not None and self.namespaced and namespace is None:
            raise ValueError(f"{self.plural} {name!r} needs a namespace")
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        if not all(_PART.fullmatch(part) and part not in (".", "..") for part in parts):
            raise ValueError(f"{parts} is no path of an object")
        return "/" + "/".join(parts)


class Key(NamedTuple):
    """Names an object among those of its kind; the namespace is empty for kinds that have none."""

    namespace: str
    name: str


def key_of(item: Mapping[str, Any]) -> Key:
    metadata = item["metadata"]
    return Key(str(metadata.get("namespace") or ""), str(metadata["name"]))


PODS = Resource(plural="pods", kind="Pod")
CONFIG_MAPS = Resource(plural="configmaps", kind="ConfigMap")
SECRETS = Resource(plural="secrets", kind="Secret")
SERVICES = Resource(plural="services", kind="Service")
SERVICE_ACCOUNTS = Resource(plural="serviceaccounts", kind="ServiceAccount")
EVENTS = Resource(plural="events", kind="Event")
NAMESPACES = Resource(plural="namespaces", kind="Namespace", namespaced=False)
NODES = Resource(plural="nodes", kind="Node", namespaced=False)
VALIDATING_WEBHOOKS = Resource(
    group="admissionregistration.k8s.io",
    plural="validatingwebhookconfigurations",
    kind="ValidatingWebhookConfiguration",
    namespaced=False,
)
NETWORK_POLICIES = Resource(group="networking.k8s.io", plural="networkpolicies", kind="NetworkPolicy")
LEASES = Resource(group="coordination.k8s.io", plural="leases", kind="Lease")

RLJOBS = Resource(group="rl.trimtab.dev", version="v1alpha1", plural="rljobs", kind="RLJob")
TRAINERS = Resource(group="rl.trimtab.dev", version="v1alpha1", plural="trainers", kind="Trainer")
ROLLOUT_POOLS = Resource(group="rl.trimtab.dev", version="v1alpha1", plural="rolloutpools", kind="RolloutPool")
