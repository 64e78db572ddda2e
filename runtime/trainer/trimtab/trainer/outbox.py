"""What leaves the trainer beside the next step: weights for the pools. Training never waits for it."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from trimtab.trainer.background import Background


class Outbox:
    """One thing under way at a time. Of what waits behind it only the newest is kept: pools want the latest version."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._under_way: Future[None] | None = None
        self._waiting: Coroutine[Any, Any, None] | None = None

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        """Begin now, or as soon as `settle` finds the last one done. Raises what the last one raised."""
        if self._waiting is not None:
            self._waiting.close()
        self._waiting = work
        self.settle()

    def settle(self) -> None:
        """Take note of what has finished, and begin what waits."""
        if self._under_way is not None and self._under_way.done():
            self._under_way.result()
            self._under_way = None
        if self._under_way is None and self._waiting is not None:
            self._under_way, self._waiting = self._background.start(self._waiting), None

    def flush(self) -> None:
        """Wait until everything is out."""
        while self._under_way is not None or self._waiting is not None:
            if self._under_way is not None:
                self._under_way.result()
                self._under_way = None
            self.settle()

    def close(self) -> None:
        """Drop what has not begun."""
        if self._waiting is not None:
            self._waiting.close()
            self._waiting = None
