"""Every request knows which weights can have answered it, whatever the order of events."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.polling import within
from trimtab.rollout.policy.version_gate import BASE, VersionGate
from trimtab.weights.store.position import Position


def at(version: int) -> Position:
    return Position(epoch=1, version=version)


class Served:
    """The engine behind the gate: which weights it has, and had."""

    def __init__(self) -> None:
        self.history = [BASE]


@pytest.mark.parametrize("seed", range(30))
async def test_a_request_between_swaps_has_one_possible_version(seed: int) -> None:
    chance = random.Random(seed)
    gate = VersionGate()
    served = Served()
    crossings: list[tuple[list[Position], Position]] = []

    async def some_turns(most: int) -> None:
        for _ in range(chance.randrange(most)):
            await asyncio.sleep(0)

    async def requests() -> None:
        for _ in range(10):
            await some_turns(3)
            async with gate.request() as crossing:
                await some_turns(6)
                crossings.append((list(crossing.possible), served.history[-1]))

    async def swaps() -> None:
        for version in range(1, 8):
            await some_turns(10)
            gate.close()
            await gate.wait_empty(timeout_s=60.0)
            assert gate.in_flight == 0
            gate.begin(at(version))
            await some_turns(5)
            served.history.append(at(version))
            gate.settle(at(version))
            gate.open()

    await asyncio.gather(swaps(), *(requests() for _ in range(8)))
    assert len(crossings) == 80
    assert all(possible == [at_end] for possible, at_end in crossings)


@pytest.mark.parametrize("seed", range(30))
async def test_a_request_under_swaps_knows_of_all_weights_that_it_can_have_met(seed: int) -> None:
    chance = random.Random(seed)
    gate = VersionGate()
    served = Served()
    crossed = 0

    async def some_turns(most: int) -> None:
        for _ in range(chance.randrange(most)):
            await asyncio.sleep(0)

    async def requests() -> None:
        nonlocal crossed
        for _ in range(10):
            await some_turns(3)
            async with gate.request() as crossing:
                met = len(served.history) - 1
                await some_turns(9)
                met_at_end = served.history[met:]
            in_order = [position for position in crossing.possible if position in met_at_end]
            assert in_order == met_at_end
            assert (
                len(crossing.possible) <= len(met_at_end) + 2
            )  # one is just leaving at its start, one coming at its end
            crossed += len(met_at_end) > 1

    async def swaps() -> None:
        for version in range(1, 8):
            await some_turns(8)
            gate.begin(at(version))
            assert gate.swapping
            await some_turns(4)
            served.history.append(at(version))
            await some_turns(4)
            gate.settle(at(version))
            assert not gate.swapping

    await asyncio.gather(swaps(), *(requests() for _ in range(8)))
    assert crossed > 0


async def test_after_a_swap_of_unknown_outcome_both_weights_are_possible_until_it_is_settled() -> None:
    gate = VersionGate(at(3))
    gate.begin(at(4))
    async with gate.request() as crossing:
        assert crossing.possible == [at(3), at(4)]
        gate.settle(at(3))
    assert gate.expects(at(3))
    assert not gate.expects(at(4))
    async with gate.request() as crossing:
        assert crossing.possible == [at(3)]


async def test_the_same_weights_again_are_no_other_weights() -> None:
    gate = VersionGate(at(3))
    async with gate.request() as crossing:
        gate.begin(at(3))
        assert crossing.possible == [at(3)]


async def test_requests_wait_while_it_is_closed() -> None:
    gate = VersionGate(at(3))
    gate.close()

    async def one() -> list[Position]:
        async with gate.request() as crossing:
            return crossing.possible

    waiting = asyncio.create_task(one())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not waiting.done()
    gate.settle(at(4))
    gate.open()
    assert await within(waiting, 1.0) == [at(4)]


async def test_a_cancelled_request_leaves_the_gate_empty() -> None:
    gate = VersionGate()
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
    await gate.wait_empty(timeout_s=60.0)
