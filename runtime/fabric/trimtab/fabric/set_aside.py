"""Counts what lay in a job's streams and could not be used: damaged, or put there by a process that had no business to.
A part passes over it and goes on, so this is what tells people.
"""

from __future__ import annotations

from typing import Literal

from trimtab.fabric.metrics import Metrics

Stream = Literal["ledger", "trajectories", "columns"]


class SetAsideRecords:
    """One series per stream, from zero on: a count that begins with one is no increase to Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._records = metrics.counter(
            "set_aside_records", "Records of the job's streams that are unreadable or not its own", ("stream",)
        )

    def watch(self, *streams: Stream) -> None:
        for stream in streams:
            self._records.labels(stream)

    def note(self, stream: Stream, count: int = 1) -> None:
        self._records.labels(stream).inc(count)
