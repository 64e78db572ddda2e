"""Where a pool's pods are when they are not at home: a kubeconfig and a namespace.

It is written on the pool, with a finalizer, before the first thing is made there, so that the operator knows where to
clean up whatever happens.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from trimtab.kube.errors import NotFound
from trimtab.kube.resources import ROLLOUT_POOLS, Object
from trimtab.operator.reconcile.cluster import Cluster

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


def is_remote(pool: Object) -> bool:
    """Whether a reconcile of the pool may have to talk to another cluster."""
    return bool(placements_of(pool))


async def record_placement(cluster: Cluster, item: Object, placement: Placement) -> Object:
    """Before the first thing is made there. Raises Conflict when the pool has changed since it was read."""
    metadata = item["metadata"]
    finalizers = list(metadata.get("finalizers") or ())
    if recorded_placement(item) == placement and FINALIZER in finalizers:
        return item
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: placement.written()}
    return await _write(cluster, item, {"finalizers": finalizers, "annotations": annotations})


async def strike_placement(cluster: Cluster, item: Object) -> None:
    """When nothing of the pool's is there any more, or its cluster was given up."""
    metadata = item["metadata"]
    kept = [name for name in metadata.get("finalizers") or () if name != FINALIZER]
    others = {name: value for name, value in (metadata.get("annotations") or {}).items() if name != ANNOTATION}
    try:
        await _write(cluster, item, {"finalizers": kept, "annotations": others})
    except NotFound:
        cluster.pools.note_gone(item)


async def _write(cluster: Cluster, item: Object, changes: Object) -> Object:
    metadata = item["metadata"]
    body = {**item, "metadata": {**metadata, **changes}}
    written = await cluster.client.replace(ROLLOUT_POOLS, metadata["name"], body, namespace=metadata["namespace"])
    if written["metadata"].get("deletionTimestamp") and not written["metadata"].get("finalizers"):
        cluster.pools.note_gone(item)
    else:
        cluster.pools.note(written)
    return written
