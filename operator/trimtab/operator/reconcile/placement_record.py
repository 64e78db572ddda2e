"""Writing down on a pool where its things are, and striking it out again: finalizer and placement in one request."""

from __future__ import annotations

from trimtab.kube.errors import NotFound
from trimtab.kube.resources import ROLLOUT_POOLS, Object
from trimtab.operator.reconcile.cluster import Cluster
from trimtab.operator.reconcile.placement import ANNOTATION, FINALIZER, Placement, recorded_placement


async def record_placement(cluster: Cluster, item: Object, placement: Placement) -> Object:
    """Before the first thing is made there. Conflict: the pool has changed, look again."""
    metadata = item["metadata"]
    finalizers = list(metadata.get("finalizers") or ())
    if recorded_placement(item) == placement and FINALIZER in finalizers:
        return item
    if FINALIZER not in finalizers:
        finalizers.append(FINALIZER)
    annotations = {**(metadata.get("annotations") or {}), ANNOTATION: placement.written()}
    return await _write(cluster, item, {"finalizers": finalizers, "annotations": annotations})


async def strike_placement(cluster: Cluster, item: Object) -> None:
    """When nothing of the pool's is there any more, or nobody will ever know."""
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
