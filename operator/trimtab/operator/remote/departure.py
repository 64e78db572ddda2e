"""The end of what a pool has in another cluster: its anchor is deleted, and the garbage collector there drains and
removes the rest. It is bounded: a cluster that is away does not hold a deleted pool for ever.
"""

from __future__ import annotations

from trimtab.kube.errors import KubeError
from trimtab.kube.resources import CONFIG_MAPS, Object, key_of
from trimtab.kube.timestamps import epoch
from trimtab.operator import event_reasons as reasons
from trimtab.operator.reconcile.cluster import Cluster, Turn
from trimtab.operator.reconcile.placement import Placement
from trimtab.operator.reconcile.placement_record import strike_placement
from trimtab.operator.remote.link import Connection
from trimtab.operator.remote.origin import Origin
from trimtab.operator.remote.sweep import remove_anchor


def origin_of(cluster: Cluster, item: Object) -> Origin:
    metadata = item["metadata"]
    return Origin(
        installation=cluster.links.installation,
        namespace=metadata["namespace"],
        job=item["spec"]["jobRef"]["name"],
        pool=metadata["name"],
        uid=metadata["uid"],
    )


async def depart(cluster: Cluster, item: Object, placement: Placement, *, give_up: bool) -> Turn:
    """Nothing of the pool's stays there. With `give_up` it is not waited for: an event says what is left, and it is
    collected if a pool of ours is in that cluster when it comes back."""
    origin, link = origin_of(cluster, item), cluster.links.to(placement)
    try:
        if link.connection is not None:
            await _remove(link.connection, origin, placement)
            await strike_placement(cluster, item)
            cluster.links.note_reach(key_of(item), None)
            return Turn()
    except KubeError:
        link.suspect()
        if not give_up:
            raise
    if not give_up:
        # Woken when the cluster is back.
        return Turn(look_again_at=departure_deadline(cluster, item))
    message = f"ConfigMap {origin.anchor_name} and all that it owns is left in {placement}, which cannot be reached"
    cluster.events.record(item, "Warning", reasons.CLEANUP_INCOMPLETE, message)
    await strike_placement(cluster, item)
    cluster.links.note_reach(key_of(item), None)
    return Turn()


def departure_deadline(cluster: Cluster, item: Object) -> float | None:
    """Until when the deletion of a pool may wait for its cluster; None for a pool that stays."""
    deleted = item["metadata"].get("deletionTimestamp")
    return None if not deleted else epoch(deleted) + cluster.settings.deletion_deadline_s


async def _remove(connection: Connection, origin: Origin, placement: Placement) -> None:
    anchor = await connection.client.get_or_none(CONFIG_MAPS, origin.anchor_name, namespace=placement.namespace)
    if anchor is not None and origin.owns(anchor):
        await remove_anchor(connection.client, anchor)
        connection.config_maps.note_gone(anchor)
