"""What a worker has computed is kept until the store takes it: a store may be full for hours, and to compute it again
would change nothing. Its place stays taken, so that a worker whose store is full takes no more tasks than it has
places.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusTimeout, BusUnavailable

_log = structlog.get_logger(__name__)


def _ignored() -> None:
    return None


async def when_there_is_room(
    publish: Callable[[], Awaitable[None]], *, backoff: FullJitter, on_refused: Callable[[], None] = _ignored
) -> None:
    """Repeats what may be published twice, until it is stored or this task is cancelled, as it is when the worker
    leaves."""
    attempt = 0
    while True:
        try:
            return await publish()
        except (BusTimeout, BusUnavailable) as error:
            on_refused()
            if attempt.bit_count() <= 1:  # each time that there were twice as many
                _log.warning("not_stored_yet", error=str(error), attempt=attempt + 1)
            await asyncio.sleep(backoff.delay_s(attempt))
            attempt += 1
