"""Whether this process is still the one whose decisions count. One that was frozen, or cut off, does not know that
another has taken its place: it looks into the ledger before it says anything again.
"""

from __future__ import annotations

import asyncio

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.fabric.bus.errors import BusError, RemoteError
from trimtab.fabric.bus.requests import Handler, Reply, Request

_log = structlog.get_logger(__name__)
_LOOK_EVERY_S = 1.0
_LASTS_S = 3.0
_ASK_EVERY_S = 0.1
_PATIENCE_S = 2.0


class Tenure:
    """Whatever the ledger takes of us proves that nobody else has written; where there is nothing to write, we look.

    A process that takes over writes first, so the one before it finds out, whenever it goes on.
    """

    def __init__(self, books: Bookkeeper) -> None:
        self._books = books

    async def run(self) -> None:
        """Until cancelled. What it finds out breaks the books, and ends the process."""
        while True:
            if self._age_s > _LOOK_EVERY_S:
                try:
                    await self._books.confirm()
                except BusError as error:
                    _log.warning("ledger_not_looked_at", error=str(error))
            await asyncio.sleep(_LOOK_EVERY_S)

    def guarded(self, handler: Handler) -> Handler:
        """The same, but for answers that may be out of date. That the store is full is said in any case."""

        async def answer(request: Request) -> Reply:
            reply = await handler(request)
            end = asyncio.get_running_loop().time() + _PATIENCE_S
            while self._age_s > _LASTS_S and self._books.stalled_since is None:
                if asyncio.get_running_loop().time() > end:
                    message = "whether another dataflow has taken over is not known just now"
                    raise RemoteError(message, kind="tenure-unknown", retryable=True)
                await asyncio.sleep(_ASK_EVERY_S)
            return reply

        return answer

    @property
    def _age_s(self) -> float:
        """Of what is known."""
        return asyncio.get_running_loop().time() - self._books.confirmed_at
