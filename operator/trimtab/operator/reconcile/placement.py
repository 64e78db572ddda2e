"""Where a pool's pods are when they are not at home: a kubeconfig and a namespace. It is written down on the pool, with
a finalizer, before the first thing is made there, so that whatever happens somebody knows where to clean up.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from trimtab.kube.resources import Object

FINALIZER = "rl.trimtab.dev/remote"
ANNOTATION = "rl.trimtab.dev/placement"


@dataclass(frozen=True, kw_only=True, order=True)
class Placement:
    home: str
    """The namespace at home, where the Secret is."""
    secret: str
    key: str
    namespace: str
    """The namespace there."""

    def __str__(self) -> str:
        return f"namespace {self.namespace} of the cluster in Secret {self.secret}"

    def written(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def wanted_placement(pool: Object) -> Placement | None:
    """None for a pool at home."""
    asked = pool["spec"].get("cluster")
    if not asked:
        return None
    home = pool["metadata"]["namespace"]
    return Placement(
        home=home,
        secret=asked["kubeconfigSecret"]["name"],
        key=asked["kubeconfigSecret"]["key"],
        namespace=asked.get("namespace") or home,
    )


def recorded_placement(item: Object) -> Placement | None:
    """Where the pool or anchor says its things are; None where it says nothing that we could have written."""
    written = (item["metadata"].get("annotations") or {}).get(ANNOTATION)
    if written is None:
        return None
    try:
        return Placement(**json.loads(written))
    except (ValueError, TypeError):
        return None


def placements_of(pool: Object) -> set[Placement]:
    """Where the pool has something, and where it should."""
    return {placement for placement in (recorded_placement(pool), wanted_placement(pool)) if placement is not None}
