"""Collects what is left in another cluster of pools that are gone: those that were deleted while it was away."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from trimtab.kube.client import KubeClient
from trimtab.kube.errors import Conflict, Forbidden, NotFound
from trimtab.kube.resources import CONFIG_MAPS, ROLLOUT_POOLS, Object
from trimtab.operator.reconcile.cache import ObjectCache
from trimtab.operator.remote.origin import home_pool_of, is_anchor_of, is_leftover

_log = structlog.get_logger(__name__)


async def sweep(
    config_maps: ObjectCache, *, there: KubeClient, home: KubeClient, home_namespace: str, installation: str
) -> None:
    """Anchors of this installation and namespace whose pool is gone from home. Everything of theirs goes with them.
    What the other cluster says about other namespaces is not followed up: it would learn what is in them."""
    for key in list(config_maps):
        anchor = config_maps.get(key)
        if anchor is None or not is_anchor_of(anchor, installation):
            continue
        pool = home_pool_of(anchor, home_namespace=home_namespace)
        if pool is None:
            continue
        # Read live: a copy may be older than the pool, and this deletes.
        try:
            live = await home.get_or_none(ROLLOUT_POOLS, pool.name, namespace=pool.namespace)
        except Forbidden:
            continue  # its namespace is not ours
        if is_leftover(anchor, live):
            _log.info("leftover_collected", pool=pool.name, home=pool.namespace, namespace=key.namespace)
            await remove_anchor(there, anchor)


async def remove_anchor(there: KubeClient, anchor: Mapping[str, Object]) -> None:
    metadata = anchor["metadata"]
    try:
        await there.delete(
            CONFIG_MAPS,
            metadata["name"],
            namespace=metadata["namespace"],
            uid=metadata["uid"],
            propagation="Background",
        )
    except (NotFound, Conflict):
        return  # it went by itself, or another has its name
