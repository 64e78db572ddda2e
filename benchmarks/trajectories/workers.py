"""The side that publishes: real frames through the rollout worker's publisher, made before the clock starts.

Encoding is left out because it is rollout's work, in many processes; `python -m benchmarks.fabric` measures it.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.trajectories.payloads import Frame, Writer
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.window import WindowedPublisher

_WINDOW_MESSAGES = 256
_WINDOW_BYTES = 64 << 20
_DEADLINE_S = 60.0
_SEED = 11


@dataclass(frozen=True, kw_only=True)
class Prepare:
    """Make these rows and keep them, in place of those there were."""

    job: str
    tokens: int
    batch_size: int
    count: int
    first: int = 0
    parts: int = 1
    """Rows of an episode."""


@dataclass(frozen=True, kw_only=True)
class Publish:
    """Of those that were made, `first` to `first + count - 1`, as fast as they are acknowledged or at an even rate."""

    subject: str
    first: int
    count: int
    per_second: float | None = None


@dataclass(frozen=True, kw_only=True)
class Prepared:
    payload_bytes: int
    """Of all rows together, without headers."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """When each row was due to be published, on the clock that all processes of a machine share."""

    at: npt.NDArray[np.float64]


class Workers:
    """What the process keeps between questions."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    async def serve(self, buses: list[Bus], question: Prepare | Publish) -> Prepared | Published:
        if isinstance(question, Publish):
            return await self._publish(buses[0], question)
        writer = Writer(
            question.job, tokens=question.tokens, batch_size=question.batch_size, seed=_SEED, parts=question.parts
        )
        self._frames = [writer.frame(question.first + number) for number in range(question.count)]
        return Prepared(payload_bytes=sum(len(frame.payload) for frame in self._frames))

    async def _publish(self, bus: Bus, question: Publish) -> Published:
        at = np.zeros(question.count)
        async with WindowedPublisher(
            bus, max_messages=_WINDOW_MESSAGES, max_bytes=_WINDOW_BYTES, deadline_s=_DEADLINE_S
        ) as publisher:
            began = time.monotonic()
            for place, frame in enumerate(self._frames[question.first : question.first + question.count]):
                now = time.monotonic()
                if question.per_second is None:
                    at[place] = now
                else:
                    # The time it was due, not the time we got to it: a pause of ours must not look like a fast way.
                    at[place] = began + place / question.per_second
                    if at[place] > now:
                        await asyncio.sleep(at[place] - now)
                await publisher.publish(
                    question.subject, frame.payload, message_id=frame.message_id, headers=frame.headers
                )
        return Published(at=at)
