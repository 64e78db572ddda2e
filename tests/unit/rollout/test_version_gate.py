"""No request crosses a swap, whatever the order of events."""

from __future__ import annotations

import asyncio
import random

import pytest

from trimtab.rollout.version_gate import VersionGate


@pytest.mark.parametrize("seed", range(30))
async def test_the_version_a_request_began_with_is_the_one_it_ends_with(seed: int) -> None:
    chance = random.Random(seed)
    gate = VersionGate(0)
    served = 0  # the version of the engine behind the gate, changed only while nothing is under way
    crossings: list[tuple[int, int]] = []

    async def some_turns(most: int) -> None:
        for _ in range(chance.randrange(most)):
            await asyncio.sleep(0)

    async def requests() -> None:
        for _ in range(10):
            await some_turns(3)
            async with gate.request() as version:
                await some_turns(6)
                crossings.append((version, served))

    async def swaps() -> None:
        nonlocal served
        for version in range(1, 8):
            await some_turns(10)
            gate.close()
            await gate.wait_empty(timeout_s=5.0)
            assert gate.in_flight == 0
            served = version
            await some_turns(5)
            gate.reopen(version=version)

    await asyncio.gather(swaps(), *(requests() for _ in range(8)))
    assert len(crossings) == 80
    assert all(stamped == at_end for stamped, at_end in crossings)


async def test_requests_wait_while_it_is_closed() -> None:
    gate = VersionGate(3)
    gate.close()

    async def one() -> int:
        async with gate.request() as version:
            return version

    waiting = asyncio.create_task(one())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.reopen(version=4)
    assert await asyncio.wait_for(waiting, 1.0) == 4


async def test_a_cancelled_request_leaves_the_gate_empty() -> None:
    gate = VersionGate(0)
    inside = asyncio.Event()

    async def one() -> None:
        async with gate.request():
            inside.set()
            await asyncio.sleep(60.0)

    request = asyncio.create_task(one())
    await inside.wait()
    gate.close()
    with pytest.raises(TimeoutError):
        await gate.wait_empty(timeout_s=0.01)
    request.cancel()
    await gate.wait_empty(timeout_s=1.0)
