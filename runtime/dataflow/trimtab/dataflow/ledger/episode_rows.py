"""Rows of a group's episodes as they arrive, by the run that they come from.

A task that is given out again runs again, and writes something else: rows of two runs are not of one episode. The first
run whose rows are all here, in the order of the stream, is the episode, and what other runs bring is too late.
"""

from __future__ import annotations

from enum import Enum
from typing import Generic, TypeVar

from trimtab.fabric.wire.header import TrajectoryHeader

Row = TypeVar("Row")
# A worker publishes a task when all its episodes are done, so rows of a run that stays incomplete are those of a worker
# that died while it published. When so many have begun since, it does not come back.
MAX_OPEN_RUNS = 8


class Added(Enum):
    """What a row was to its episode."""

    WAITING = "waiting"
    CLOSED = "closed"
    DUPLICATE = "duplicate"
    REFUSED = "refused"
    """It says another number of parts than rows of the same run before it."""


# Looked up for every row.
CLOSED = Added.CLOSED
WAITING = Added.WAITING


class _Run(Generic[Row]):
    """What has arrived of one run of one episode."""

    __slots__ = ("parts", "rows", "tokens")

    def __init__(self, parts: int) -> None:
        self.parts = parts
        self.rows: dict[int, Row] = {}
        self.tokens = 0


class EpisodeRows(Generic[Row]):
    """One group. Its episodes are closed one by one, each by the last row of a run, by a failure, or by an Empty."""

    __slots__ = ("_open", "closed", "empty", "rows", "tokens")

    def __init__(self) -> None:
        self.closed: set[int] = set()
        """Indices of the episodes that are."""
        self.empty = 0
        """Of them, those without a row."""
        self.rows: list[Row] = []
        """Of closed episodes: those of one follow one another in the order of their parts."""
        self.tokens = 0
        self._open: dict[int, dict[str, _Run[Row]]] = {}
        """By index and run, the run that began last at the end."""

    def add(self, header: TrajectoryHeader, row: Row) -> Added:
        index = header.group_index
        if index in self.closed:
            return Added.DUPLICATE
        parts = header.parts
        if parts == 1:
            self.rows.append(row)
        elif parts == 0:
            self.empty += 1
        elif header.error is None:
            return self._add_part(header, row)
        else:
            self.rows.append(row)
        self.tokens += header.prompt_tokens + header.response_tokens
        self.closed.add(index)
        if self._open:
            self._open.pop(index, None)
        return CLOSED

    def open_rows(self) -> int:
        """Held for runs that are not complete."""
        return sum(len(run.rows) for runs in self._open.values() for run in runs.values())

    def _add_part(self, header: TrajectoryHeader, row: Row) -> Added:
        runs = self._open.get(header.group_index)
        if runs is None:
            runs = self._open[header.group_index] = {}
        run = runs.get(header.run)
        if run is None:
            run = runs[header.run] = _Run(header.parts)
            if len(runs) > MAX_OPEN_RUNS:
                del runs[next(iter(runs))]
        elif run.parts != header.parts:
            return Added.REFUSED
        elif header.part in run.rows:
            return Added.DUPLICATE
        run.rows[header.part] = row
        run.tokens += header.prompt_tokens + header.response_tokens
        if len(run.rows) < run.parts:
            return WAITING
        self.rows += [run.rows[part] for part in range(run.parts)]
        self.tokens += run.tokens
        self.closed.add(header.group_index)
        del self._open[header.group_index]
        return CLOSED
