"""The rate holds for all that share it, whatever they do at once, measured by a clock that only sleeping moves."""

from __future__ import annotations

import asyncio
import heapq
import itertools

import pytest

from trimtab.weights.store.rate import RateLimit


class Timeline:
    """Virtual time: it jumps to the next sleeper once nobody is awake."""

    def __init__(self) -> None:
        self.now = 100.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken.wait()

    async def run(self, *jobs: asyncio.Task[None]) -> None:
        while not all(job.done() for job in jobs):
            for _ in range(5):
                await asyncio.sleep(0)
            if self._sleepers:
                self.now, _, woken = heapq.heappop(self._sleepers)
                woken.set()
        await asyncio.gather(*jobs)


async def test_many_fetchers_together_keep_to_the_rate_and_use_it_up() -> None:
    timeline = Timeline()
    rate = RateLimit(1000.0, clock=timeline.clock, sleep=timeline.sleep)
    taken: list[tuple[float, int]] = []

    async def fetch(size: int) -> None:
        for _ in range(20):
            await rate.take(size)
            taken.append((timeline.now, size))

    sizes = (10, 50, 100, 7)
    await timeline.run(*(asyncio.create_task(fetch(size)) for size in sizes))
    total = 20 * sum(sizes)
    assert timeline.now - 100.0 == pytest.approx((total - taken[-1][1]) / 1000.0)
    # In no stretch of time more than the rate and one request.
    for first, last in itertools.combinations(range(len(taken)), 2):
        passed = sum(size for _, size in taken[first : last + 1])
        assert passed <= (taken[last][0] - taken[first][0]) * 1000.0 + max(sizes) + 1e-6


async def test_time_unused_is_not_saved_up() -> None:
    timeline = Timeline()
    rate = RateLimit(1000.0, clock=timeline.clock, sleep=timeline.sleep)
    await rate.take(100)
    timeline.now += 60.0

    async def two() -> None:
        await rate.take(100)
        await rate.take(100)

    await timeline.run(asyncio.create_task(two()))
    assert timeline.now == pytest.approx(160.1)


def test_ranges_take_a_quarter_of_a_second_within_bounds() -> None:
    assert RateLimit(1.0).range_bytes == 64 << 10
    assert RateLimit(4 << 20).range_bytes == 1 << 20
    assert RateLimit(10e9).range_bytes == 8 << 20
    with pytest.raises(ValueError, match="lets nothing through"):
        RateLimit(0)
