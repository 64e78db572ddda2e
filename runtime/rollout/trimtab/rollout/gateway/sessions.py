"""Who may ask: every session under the key that its agent was given."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from trimtab.rollout.gateway.exchange import Session, Unavailable
from trimtab.rollout.gateway.protocols.surface import Unauthorized

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, eq=False)
class Admitted:
    """A session, and what is being done for it."""

    key: str
    session: Session
    slots: asyncio.Semaphore
    """An agent that asks for more at once waits: its requests stay unread, and take no memory."""
    running: set[asyncio.Task[Any]] = field(default_factory=set)

    @asynccontextmanager
    async def slot(self, *, timeout_s: float) -> AsyncIterator[None]:
        async with in_time(timeout_s):
            await self.slots.acquire()
        try:
            yield
        finally:
            self.slots.release()

    async def work(self, work: Coroutine[Any, Any, Result], *, timeout_s: float) -> Result:
        """What it returns or raises. Raises Unavailable when the episode or the time is over; the work is cancelled
        with whoever waits for it.
        """
        task = self.begin(work)
        try:
            async with in_time(timeout_s):
                await asyncio.wait({task})
        finally:
            task.cancel()  # of no effect on what is done
        return outcome(task)

    def begin(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        task = asyncio.create_task(work, name="gateway request")
        self.running.add(task)
        task.add_done_callback(self.running.discard)
        return task


@asynccontextmanager
async def in_time(seconds: float) -> AsyncIterator[None]:
    """Raises Unavailable when the time is over."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        raise Unavailable(f"not answered within {seconds:g} s") from None


def outcome(task: asyncio.Task[Result]) -> Result:
    """Of a task that is done."""
    if task.cancelled():
        raise Unavailable("the episode is over")
    return task.result()


class Sessions:
    """Keys are looked up by a digest that nobody outside can compute, so that the time it takes tells nothing."""

    def __init__(self, *, requests_at_once: int) -> None:
        self._requests_at_once = requests_at_once
        self._salt = secrets.token_bytes(32)
        self._admitted: dict[bytes, Admitted] = {}

    def __len__(self) -> int:
        return len(self._admitted)

    @asynccontextmanager
    async def admit(self, session: Session, *, key: str) -> AsyncIterator[None]:
        """For as long as the context lasts. What is still asked then is answered with an error at once."""
        digest = self._digest(key)
        if digest in self._admitted:
            raise ValueError("two sessions have the same key")
        admitted = Admitted(key=key, session=session, slots=asyncio.Semaphore(self._requests_at_once))
        self._admitted[digest] = admitted
        try:
            yield
        finally:
            del self._admitted[digest]
            for task in list(admitted.running):
                task.cancel()

    def of(self, key: str | None) -> Admitted:
        """Raises Unauthorized."""
        found = None if key is None else self._admitted.get(self._digest(key))
        if found is None or key is None or not hmac.compare_digest(_bytes(found.key), _bytes(key)):
            raise Unauthorized("the API key is of no session here: use the one in the environment of this episode")
        return found

    def _digest(self, key: str) -> bytes:
        return hashlib.blake2b(_bytes(key), key=self._salt).digest()


def _bytes(key: str) -> bytes:
    """A header can hold bytes that are no text."""
    return key.encode(errors="surrogateescape")
