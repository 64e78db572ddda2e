"""Keeps the ledger short while the job runs."""

from __future__ import annotations

from trimtab.dataflow.curators.lessons import Lessons
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper

_IDLE_S = 5.0


class Compactor:
    """Looks whenever something was recorded; snapshots are rare."""

    def __init__(self, books: Bookkeeper, lessons: Lessons) -> None:
        self._books = books
        self._lessons = lessons

    async def run(self) -> None:
        while True:
            await self._books.compact(self._lessons.state)
            await self._books.changed(timeout_s=_IDLE_S)
