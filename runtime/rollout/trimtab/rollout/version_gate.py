"""Keeps requests and weight swaps apart: the version stamped on a request at sending is the one that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class VersionGate:
    """Requests pass while the gate is open; a swap closes it, waits until none is under way, and opens it again."""

    def __init__(self, version: int) -> None:
        self.version = version
        self._in_flight = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    @asynccontextmanager
    async def request(self) -> AsyncIterator[int]:
        """Wait until the gate is open; inside, the version does not change."""
        # No await between the check and the count: on one event loop nothing can close the gate in between.
        while not self._open.is_set():
            await self._open.wait()
        self._in_flight += 1
        self._empty.clear()
        try:
            yield self.version
        finally:
            self._in_flight -= 1
            if self._in_flight == 0:
                self._empty.set()

    def close(self) -> None:
        self._open.clear()

    async def wait_empty(self, *, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._empty.wait()

    def reopen(self, *, version: int) -> None:
        self.version = version
        self._open.set()
