"""What a worker does while it holds a delivery: tells the queue so, and waits for the weights that it asks for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping

import structlog

from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError
from trimtab.rollout.policy.freshness import Freshness

_log = structlog.get_logger(__name__)


async def keep(delivery: Delivery, *, lease_s: float) -> None:
    """Tell the queue that we are still at it, well before it would give the task to another. Until cancelled."""
    while True:
        await asyncio.sleep(lease_s / 3)
        with contextlib.suppress(BusError):
            await delivery.in_progress()


async def weights_arrived(
    freshness: Freshness,
    minimum_versions: Mapping[str, int],
    *,
    task_id: str,
    lease_s: float,
    draining: asyncio.Event,
    clock: Callable[[], float],
    poll_s: float,
) -> bool:
    """Wait for the weights that the task asks for, at most as long as a lease.

    They are on their way to this worker, and the heartbeat keeps the task here meanwhile. After that, another worker
    may have them.
    """
    end = clock() + lease_s
    while served := freshness.too_old_for(minimum_versions):
        if draining.is_set() or clock() >= end:
            _log.info("weights_too_old", task=task_id, wanted=dict(minimum_versions), served=served)
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(poll_s):
                await draining.wait()
    return True
