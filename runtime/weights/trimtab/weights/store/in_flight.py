"""Keeps publications and collection of one process apart: an object that a publication counts on is not deleted.

New objects are safe because they are young. One that an earlier, failed attempt left behind may be old and about to
go, and a publication that finds it in place would rely on it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Publication:
    """The keys that a publication counts on, from before it writes them until the pointer leads to them."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._keys: set[str] = set()

    async def claim(self, key: str) -> None:
        """Returns when nothing deletes this key, and nothing will until the publication is over."""
        if key not in self._keys:
            self._keys.add(key)
            self._in_flight._claim(key)
        await self._in_flight._deleted(key)

    def _release(self) -> None:
        self._in_flight._release(self._keys)


class InFlight:
    """One for each process that publishes; its collection must be given the same one."""

    def __init__(self) -> None:
        self._claimed: Counter[str] = Counter()
        self._watchers: list[set[str]] = []
        self._deleting: dict[str, list[asyncio.Event]] = {}

    @contextmanager
    def publication(self) -> Iterator[Publication]:
        """Must last until the pointer has been moved, or the attempt given up."""
        publication = Publication(self)
        try:
            yield publication
        finally:
            publication._release()

    @contextmanager
    def watched(self) -> Iterator[set[str]]:
        """A set that holds every key claimed now or while it is watched, released or not: a reader of the catalogue
        in between may have read it just before the claimed key got in.
        """
        seen = set(self._claimed)
        self._watchers.append(seen)
        try:
            yield seen
        finally:
            # By identity: two watchers may hold equal sets.
            self._watchers = [watcher for watcher in self._watchers if watcher is not seen]

    @contextmanager
    def deleting(self, key: str) -> Iterator[None]:
        """To be entered without an await since the watched set was last looked at. Two collections may delete the same
        key.
        """
        over = asyncio.Event()
        self._deleting.setdefault(key, []).append(over)
        try:
            yield
        finally:
            over.set()
            self._deleting[key].remove(over)
            if not self._deleting[key]:
                del self._deleting[key]

    def _claim(self, key: str) -> None:
        self._claimed[key] += 1
        for watcher in self._watchers:
            watcher.add(key)

    def _release(self, keys: set[str]) -> None:
        self._claimed.subtract(keys)
        self._claimed += Counter()  # drops those that are no more claimed

    async def _deleted(self, key: str) -> None:
        while deletions := self._deleting.get(key):
            await deletions[0].wait()
