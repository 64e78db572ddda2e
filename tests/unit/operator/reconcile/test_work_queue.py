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


def _fair(*, at_once: int | None) -> WorkQueue[str]:
    """Keys like a1 are tenant a's."""
    return WorkQueue(clock=asyncio.get_running_loop().time, tenant=lambda key: key[0], at_once=at_once)


async def test_tenants_have_their_turns_however_much_one_of_them_asks_for() -> None:
    queue = _fair(at_once=None)
    for key in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.add(key)
    assert await _taken(queue, 6) == ["a1", "b1", "c1", "a2", "b2", "a3"]


async def test_no_tenant_has_all_the_workers() -> None:
    queue = _fair(at_once=2)
    for key in ("a1", "a2", "a3"):
        queue.add(key)
    assert await _taken(queue, 2) == ["a1", "a2"]
    third = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not third.done()
    queue.add("b1")
    async with patiently(5):
        assert await third == "b1"
    waiting = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    queue.done("a1")
    async with patiently(5):
        assert await waiting == "a3"


async def test_what_needs_no_worker_counts_for_none() -> None:
    queue = _fair(at_once=1)
    queue.add("a1")
    assert await _taken(queue, 1) == ["a1"]
    queue.detach("a1")
    queue.add("a2")
    assert await _taken(queue, 1) == ["a2"]
    queue.add("a1")
    assert queue.depth == 0, "it is not worked on twice at once"
    queue.done("a1")
    queue.done("a2")
    assert await _taken(queue, 1) == ["a1"]
