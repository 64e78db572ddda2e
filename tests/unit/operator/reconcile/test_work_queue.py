"""The queue's promises: each key once, never twice at once, in turn."""

from __future__ import annotations

import asyncio

from tests.support.polling import patiently
from trimtab.operator.reconcile.work_queue import WorkQueue


def _queue() -> WorkQueue[str]:
    return WorkQueue(clock=asyncio.get_running_loop().time)


async def _taken(queue: WorkQueue[str], count: int) -> list[str]:
    async with patiently(5):
        return [await queue.take() for _ in range(count)]


async def test_a_key_is_waiting_once() -> None:
    queue = _queue()
    for key in ("a", "b", "a"):
        queue.add(key)
    assert queue.depth == 2
    assert await _taken(queue, 2) == ["a", "b"]


async def test_a_key_that_is_worked_on_comes_again_afterwards_and_last() -> None:
    queue = _queue()
    queue.add("a")
    await _taken(queue, 1)
    queue.add("a")
    queue.add("b")
    assert queue.depth == 1
    queue.done("a")
    assert await _taken(queue, 2) == ["b", "a"]


async def test_the_earliest_wish_counts() -> None:
    queue = _queue()
    queue.add_later("a", 60)
    queue.add_later("a", 0.01)
    queue.add_later("a", 60)
    assert await _taken(queue, 1) == ["a"]
    queue.done("a")
    assert queue.depth == 0


async def test_a_forgotten_key_does_not_come() -> None:
    queue = _queue()
    queue.add_later("a", 0.01)
    queue.forget("a")
    queue.add_later("b", 0.02)
    assert await _taken(queue, 1) == ["b"]
    assert queue.depth == 0


async def test_the_age_of_work_is_known() -> None:
    queue = _queue()
    assert queue.busy_since is None
    queue.add("a")
    await _taken(queue, 1)
    assert queue.busy_since is not None
    queue.done("a")
    assert queue.busy_since is None
