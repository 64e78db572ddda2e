"""Fetches the rows that are needed next while those at hand are computed on."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from trimtab.trainer.background import Background
from trimtab.trainer.batch import StepPortion
from trimtab.trainer.batch_stream import BatchStream, Place, Trained

_LOOK_UP_S = 0.2


@dataclass(frozen=True, kw_only=True)
class _Request:
    place: Place
    trained: Trained
    answer: Future[StepPortion | None]


class RowsAhead:
    """One portion ahead: of the step that is under way, or the first of the next.

    Whoever asks for the next step says which steps are trained, and rollout may wait for exactly that news. So a
    request that has not been answered by the time the step is done is asked again, with the news.
    """

    def __init__(self, stream: BatchStream, background: Background, *, stopping: Callable[[], bool]) -> None:
        self._stream = stream
        self._background = background
        self._stopping = stopping
        self._ahead: _Request | None = None

    def fetch(self, place: Place, *, trained: Trained) -> None:
        """Begin to get these rows."""
        self.close()
        answer = self._background.start(self._stream.portion(place, trained=trained, stopping=self._stopping))
        self._ahead = _Request(place=place, trained=trained, answer=answer)

    def take(self, place: Place, *, trained: Trained, idle: Callable[[], None]) -> StepPortion | None:
        """The rows; None when the policy is finished or we should stop. `idle` is called while there are none."""
        ahead = self._ahead
        if ahead is None or ahead.place != place or (ahead.trained != trained and not ahead.answer.done()):
            self.fetch(place, trained=trained)
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        while not ahead.answer.done():
            concurrent.futures.wait((ahead.answer,), timeout=_LOOK_UP_S)
            if not ahead.answer.done():
                idle()
        return ahead.answer.result()

    def close(self) -> None:
        """Rows that were not taken stay where they are; whoever asks for the step again gets the same."""
        if self._ahead is not None:
            self._ahead.answer.cancel()
            self._ahead = None
