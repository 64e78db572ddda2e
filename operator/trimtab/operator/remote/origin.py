"""How things in another cluster say where they come from: by labels, and by names that no other home can have.

Everything a pool has there belongs to one anchor, a ConfigMap: the garbage collector there knows it, where it would
take an owner at home for one that is gone; and with it everything goes at once.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Any

from trimtab.api import labels
from trimtab.api.model import GROUP
from trimtab.kube.resources import Key, Object
from trimtab.operator.plan.pods import ObservedPod
from trimtab.operator.reconcile.ownership import is_leaving
from trimtab.operator.reconcile.placement import ANNOTATION, Placement

INSTALLATION = f"{GROUP}/installation"
"""Which operator made it; others must not collect it."""
HOME_NAMESPACE = f"{GROUP}/home-namespace"
HOME_JOB = f"{GROUP}/home-job"
HOME_POOL_UID = f"{GROUP}/home-pool-uid"
"""On everything of ours there, and on nothing else."""
ANCHOR_ROLE = "anchor"
_HEX_DIGITS = 8
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """A pool at home, as its things elsewhere know it."""

    installation: str
    namespace: str
    job: str
    pool: str
    uid: str

    @property
    def _suffix(self) -> str:
        """Uids are unique among clusters, so two homes can share a namespace."""
        return "-" + hashlib.sha256(self.uid.encode()).hexdigest()[:_HEX_DIGITS]

    @property
    def anchor_name(self) -> str:
        return self.name(self.pool)

    def name(self, planned: str) -> str:
        """What is called `planned` at home, as it is called there. It may be longer than a hostname, which kubelets
        cut."""
        return planned + self._suffix

    def seen_from_home(self, pod: ObservedPod) -> ObservedPod:
        """The pod by the name that the plan and the bus know it by."""
        return replace(pod, name=pod.name.removesuffix(self._suffix))

    @property
    def labels(self) -> dict[str, str]:
        return {
            INSTALLATION: self.installation,
            HOME_NAMESPACE: self.namespace,
            HOME_JOB: self.job,
            HOME_POOL_UID: self.uid,
            labels.OWNER: self.pool,
        }

    def anchor(self, placement: Placement) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {
                "name": self.anchor_name,
                "namespace": placement.namespace,
                "labels": self.labels | {labels.ROLE: ANCHOR_ROLE},
                "annotations": {ANNOTATION: placement.written()},
            },
            "data": {"about": f"Holds what RolloutPool {self.namespace}/{self.pool} of another cluster has here."},
        }

    def owns(self, anchor: Object) -> bool:
        return (anchor["metadata"].get("labels") or {}).get(HOME_POOL_UID) == self.uid

    def sent_abroad(self, body: Object, *, anchor: Object) -> Object:
        """An object made for home, as it is stored there. Without the label of jobs, by which an operator there would
        take it for one of its own."""
        metadata: dict[str, Any] = body["metadata"]
        kept = {name: value for name, value in (metadata.get("labels") or {}).items() if name != labels.JOB}
        return {
            **body,
            "metadata": {
                **metadata,
                "name": self.name(metadata["name"]),
                "namespace": anchor["metadata"]["namespace"],
                "labels": kept | self.labels,
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "ConfigMap",
                        "name": anchor["metadata"]["name"],
                        "uid": anchor["metadata"]["uid"],
                        "controller": True,
                    }
                ],
            },
        }


def home_pool_of(item: Object, *, home_namespace: str) -> Key | None:
    """The pool in this namespace that something there belongs to; None for what is not ours. The labels are the other
    cluster's word, which counts for the namespace whose kubeconfig leads there and for no other."""
    own = item["metadata"].get("labels") or {}
    name = own.get(labels.OWNER, "")
    if HOME_POOL_UID not in own or own.get(HOME_NAMESPACE) != home_namespace or not _NAME.fullmatch(name):
        return None
    return Key(home_namespace, name)


def is_anchor_of(item: Object, installation: str) -> bool:
    own = item["metadata"].get("labels") or {}
    return own.get(labels.ROLE) == ANCHOR_ROLE and own.get(INSTALLATION) == installation and HOME_POOL_UID in own


def is_leftover(anchor: Object, home_pool: Object | None) -> bool:
    """Whether its pool is gone, or has its things elsewhere now. `home_pool` is what has the pool's name today, read
    from the server and not from a copy."""
    if is_leaving(anchor):
        return False
    if home_pool is None or home_pool["metadata"]["uid"] != anchor["metadata"]["labels"][HOME_POOL_UID]:
        return True
    recorded = (home_pool["metadata"].get("annotations") or {}).get(ANNOTATION)
    return bool(recorded != (anchor["metadata"].get("annotations") or {}).get(ANNOTATION))
