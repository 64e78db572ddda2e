"""Publishes weights beside the next step, which only reads them until its optimiser changes them.

So the weights are compared with what was published last while the next rows are computed on, and nobody waits unless
that takes longer than both passes over the rows.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

from trimtab.trainer.background import Background
from trimtab.trainer.outbox import Outbox
from trimtab.trainer.persistence import persistently
from trimtab.weights.baseline import Captured
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.source import WeightSource

# The first version of a large model is uploaded whole, and nobody waits for it but the pools.
_PUBLISH_DEADLINE_S = 1800.0


class WeightOutbox:
    """One version under way at a time."""

    def __init__(self, publisher: WeightPublisher, background: Background) -> None:
        self._publisher = publisher
        self._background = background
        self._versions = Outbox(background)
        self._reading: Future[Captured] | None = None

    @property
    def busy(self) -> bool:
        """Raises what the last version failed with."""
        return self._versions.busy

    def send(self, version: int, weights: WeightSource) -> None:
        """Only when it is not busy. The weights must stay as they are until `wait_until_read` returns."""
        self._reading = self._background.start(asyncio.to_thread(self._publisher.capture, weights))
        self._versions.send(self._publish(version, self._reading))

    def wait_until_read(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.result()

    def flush(self) -> None:
        """Wait until it is out."""
        self._versions.flush()

    async def _publish(self, version: int, reading: Future[Captured]) -> None:
        captured = await asyncio.wrap_future(reading)
        await persistently(
            lambda: self._publisher.publish(version, captured, deadline_s=_PUBLISH_DEADLINE_S),
            what=f"weights of version {version}",
            deadline_s=_PUBLISH_DEADLINE_S,
        )
