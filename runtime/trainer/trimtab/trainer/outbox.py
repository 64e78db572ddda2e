"""What leaves the trainer beside the next step: weights and checkpoints. Training never waits for it."""

from __future__ import annotations

from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from trimtab.trainer.background import Background


class Outbox:
    """One thing under way at a time. Whoever finds it busy comes again later, with something newer."""

    def __init__(self, background: Background) -> None:
        self._background = background
        self._under_way: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Raises what the last one raised."""
        self.raise_failure()
        return self._under_way is not None

    def raise_failure(self) -> None:
        """Raises what the last one raised, once it has ended; does not wait for it."""
        if self._under_way is not None and self._under_way.done():
            self.flush()

    def send(self, work: Coroutine[Any, Any, None]) -> None:
        """Only when it is not busy."""
        self._under_way = self._background.start(work)

    def flush(self) -> None:
        """Wait until it is out."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            under_way.result()
