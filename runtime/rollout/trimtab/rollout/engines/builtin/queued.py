"""Waits in the scheduler's queue on behalf of a client: for all that it asked, or until it is gone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from trimtab.rollout.engines.builtin.generation import Generation
from trimtab.rollout.engines.builtin.messages import too_many_requests, unavailable
from trimtab.rollout.engines.builtin.scheduler import EngineDeadError, QueueFullError, Scheduler
from trimtab.rollout.engines.builtin.scoring import Scoring

Queued = Generation | Scoring


async def ended(scheduler: Scheduler, requests: Sequence[Queued]) -> None:
    """Raises the answer to give where they cannot come to their end."""
    submitted: list[Queued] = []
    try:
        for request in requests:
            scheduler.submit(request)
            submitted.append(request)
        for request in requests:
            await asyncio.wrap_future(request.done)
    except QueueFullError as full:
        withdraw(scheduler, submitted)
        raise too_many_requests(str(full)) from None
    except EngineDeadError as dead:
        raise unavailable(str(dead)) from None
    except asyncio.CancelledError:
        withdraw(scheduler, submitted)  # the client is gone
        raise


def withdraw(scheduler: Scheduler, requests: Sequence[Queued]) -> None:
    with contextlib.suppress(EngineDeadError):
        for request in requests:
            scheduler.withdraw(request)
