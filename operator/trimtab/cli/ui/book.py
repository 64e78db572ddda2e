"""The runs that there are to look at, and who looks at which: what only matters now is asked for of those alone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from trimtab.cli.ui.run import Run


class Source(Protocol):
    """Where runs come from."""

    async def keep(self, book: Book) -> None:
        """Adds, removes and changes runs until it is cancelled."""


class Book:
    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.changes = 0
        """Counts up when the list of runs is another one, or a line of it."""
        self._troubles: dict[str, str] = {}
        self._watchers: Counter[str] = Counter()
        self._following: dict[str, asyncio.Task[None]] = {}

    def put(self, run: Run) -> None:
        self.runs[run.id] = run
        self.changes += 1

    def drop(self, run_id: str) -> None:
        if self.runs.pop(run_id, None) is not None:
            self.changes += 1
        self._stop(run_id)

    @property
    def trouble(self) -> str:
        """Why runs are missing from it, or may be behind."""
        return "\n".join(sorted(set(self._troubles.values())))

    def say(self, source: str, trouble: str) -> None:
        """Of one source; empty when all is well with it."""
        before = self.trouble
        if trouble:
            self._troubles[source] = trouble
        else:
            self._troubles.pop(source, None)
        self.changes += self.trouble != before

    @contextmanager
    def watched(self, run_ids: frozenset[str]) -> Iterator[None]:
        """Somebody looks at these, whether they are there or not."""
        self._watchers.update(run_ids)
        try:
            yield
        finally:
            self._watchers -= Counter(run_ids)

    def follow_watched(self) -> None:
        """Those that are live; called again and again."""
        wanted = {run_id for run_id in self._watchers if run_id in self.runs and self.runs[run_id].is_live}
        for run_id in self._following.keys() - wanted:
            self._stop(run_id)
        for run_id in wanted - self._following.keys():
            self._following[run_id] = asyncio.create_task(self.runs[run_id].follow())

    async def close(self) -> None:
        following = list(self._following.values())
        for run_id in list(self._following):
            self._stop(run_id)
        await asyncio.gather(*following, return_exceptions=True)

    def _stop(self, run_id: str) -> None:
        if (following := self._following.pop(run_id, None)) is not None:
            following.cancel()
