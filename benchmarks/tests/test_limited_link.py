"""The link that benchmarks run over has the rate and the latency that they say it has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from benchmarks.limited_link import Link, limited_link
from tests.support.polling import within

KIB = 1024
RATE = 4e6
_MOST_TRIES = 20


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers each message of eight bytes with as many bytes as it asks for."""
    try:
        while True:
            writer.write(bytes(int.from_bytes(await reader.readexactly(8), "little")))
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


async def _ask(port: int, size: int, times: int = 1) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(times):
        writer.write(size.to_bytes(8, "little"))
        await reader.readexactly(size)
    writer.close()


async def _seconds(work: Callable[[], Awaitable[object]]) -> float:
    started = time.perf_counter()
    await within(work(), 30)
    return time.perf_counter() - started


async def _takes(work: Callable[[], Awaitable[object]], *, at_least: float, below: float) -> bool:
    """Never less than that, and at times not more: other work on the machine can only make it slower."""
    for _ in range(_MOST_TRIES):
        elapsed = await _seconds(work)
        assert elapsed > at_least
        if elapsed < below:
            return True
    return False


@pytest.mark.parametrize(("shared", "expected_s"), [(False, 0.5), (True, 1.5)], ids=["each its own", "shared"])
async def test_connections_have_the_rate_each_or_together(port: int, expected_s: float, *, shared: bool) -> None:
    size = int(0.5 * RATE)
    with limited_link(port, Link(bytes_per_s=RATE, shared=shared)) as limited:
        assert await _takes(
            lambda: asyncio.gather(*(_ask(limited, size) for _ in range(3))),
            at_least=0.9 * expected_s,
            below=2 * expected_s,
        )


async def test_every_round_trip_takes_the_latency_twice(port: int) -> None:
    with limited_link(port, Link(bytes_per_s=1e9, latency_s=0.05)) as limited:
        assert await _takes(lambda: _ask(limited, 10 * KIB, times=4), at_least=4 * 0.1, below=4 * 0.2)


async def test_latency_does_not_limit_the_rate(port: int) -> None:
    """Bytes are on the way one behind the other: if each stretch waited for the one before, it would take 6 seconds."""
    with limited_link(port, Link(bytes_per_s=RATE, shared=True, latency_s=0.1)) as limited:
        assert await _takes(lambda: _ask(limited, int(RATE)), at_least=1.1, below=4.0)


@pytest.mark.slow
async def test_a_pause_is_not_made_up_for_by_a_burst(port: int) -> None:
    with limited_link(port, Link(bytes_per_s=RATE, shared=True)) as limited:
        await _ask(limited, KIB)
        await asyncio.sleep(0.5)
        elapsed = await _seconds(lambda: _ask(limited, int(0.5 * RATE)))
    assert elapsed > 0.45
