"""Reading a stream in order, each message once."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.support.polling import patiently
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusTimeout, StreamRewound
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_stream, delete_message
from trimtab.fabric.bus.topology import StreamSpec
from trimtab.fabric.settings import NatsSettings


def spec() -> StreamSpec:
    name = f"S{uuid4().hex[:12]}"
    return StreamSpec(name=name, subjects=(f"{name}.>",))


async def fill(bus: Bus, stream: StreamSpec, numbers: range) -> None:
    for number in numbers:
        await publish(
            bus, f"{stream.name}.{number % 2}", b"x" * number, message_id=f"m{number}", headers={"N": str(number)}
        )


async def read_all(reader: StreamReader) -> list[int]:
    numbers = []
    while not reader.caught_up:
        numbers += [int(one.headers["N"]) for one in await reader.read(batch=7, wait_s=5.0)]
    return numbers


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


async def test_everything_in_order_and_then_what_comes_later(bus: Bus) -> None:
    stream = spec()
    await declare_stream(bus, stream, deadline_s=60.0)
    async with StreamReader(bus, stream=stream.name) as reader:
        assert await read_all(reader) == [], "an empty stream is caught up with at once"
        await fill(bus, stream, range(20))
        assert [int(one.headers["N"]) for one in await reader.read(batch=50, wait_s=5.0)] == list(range(20))
        assert reader.caught_up
        assert reader.last_sequence == 20
        assert await reader.read(batch=1, wait_s=0.05) == []


async def test_it_begins_where_it_is_told_and_leaves_payloads_behind(bus: Bus) -> None:
    stream = spec()
    await declare_stream(bus, stream, deadline_s=60.0)
    await fill(bus, stream, range(20))
    await delete_message(bus, stream.name, 14, deadline_s=60.0)
    async with StreamReader(bus, stream=stream.name, after_sequence=12, headers_only=True) as reader:
        deliveries = await reader.read(batch=50, wait_s=5.0)
        assert [one.sequence for one in deliveries] == [13, 15, 16, 17, 18, 19, 20]
        assert {one.payload for one in deliveries} == {b""}
    async with StreamReader(bus, stream=stream.name, subject=f"{stream.name}.1") as reader:
        assert await read_all(reader) == [1, 3, 5, 7, 9, 11, 15, 17, 19]


async def test_a_stream_that_is_not_there_is_a_timeout(bus: Bus) -> None:
    async with StreamReader(bus, stream="NOWHERE") as reader:
        with pytest.raises(BusTimeout, match="NOWHERE"):
            await reader.read(batch=1, wait_s=0.2)


async def test_each_message_once_while_the_server_is_killed(own_nats: EmbeddedNats) -> None:
    stream = spec()
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_stream(bus, stream, deadline_s=60.0)

        async def write() -> None:
            for number in range(60):
                while True:
                    try:
                        await fill(bus, stream, range(number, number + 1))
                        break
                    except BusError:
                        await asyncio.sleep(0.05)

        writing = asyncio.create_task(write())
        seen: list[int] = []
        kill_at = [10, 30]
        async with StreamReader(bus, stream=stream.name) as reader, patiently(60.0):
            while len(seen) < 60:
                if kill_at and len(seen) >= kill_at[0]:
                    kill_at.pop(0)
                    own_nats.kill()
                    await asyncio.to_thread(own_nats.start)
                try:
                    seen += [int(one.headers["N"]) for one in await reader.read(batch=3, wait_s=5.0)]
                except BusTimeout:
                    continue
        await writing
        assert seen == list(range(60))


async def test_numbers_that_were_used_again_after_a_loss_of_power_are_noticed(tmp_path: Path) -> None:
    stream = spec()
    folder = tmp_path / "nats"
    with EmbeddedNats(folder, supervise=False) as server:
        async with await Bus.connect(server.settings, name="test") as bus:
            await declare_stream(bus, stream, deadline_s=60.0)
            await fill(bus, stream, range(10))
            await asyncio.to_thread(server.stop)
            (stored,) = folder.rglob(f"{stream.name}/msgs")
            shutil.copytree(stored, tmp_path / "before")
            await asyncio.to_thread(server.start)
            async with (
                StreamReader(bus, stream=stream.name, never_rewound=True) as strict,
                StreamReader(bus, stream=stream.name) as other,
            ):
                await fill(bus, stream, range(10, 15))
                assert await read_all(strict) == await read_all(other) == list(range(15))
                await asyncio.to_thread(server.stop)
                shutil.rmtree(stored)
                shutil.copytree(tmp_path / "before", stored)
                await asyncio.to_thread(server.start)
                await fill(bus, stream, range(100, 120))
                with pytest.raises(StreamRewound, match="another message 15"):
                    await strict.read(batch=50, wait_s=30.0)
                assert [int(one.headers["N"]) for one in await other.read(batch=50, wait_s=30.0)] == [*range(105, 120)]


async def test_what_was_read_and_deleted_since_is_no_matter(own_nats: EmbeddedNats) -> None:
    stream = spec()
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_stream(bus, stream, deadline_s=60.0)
        await fill(bus, stream, range(5))
        async with StreamReader(bus, stream=stream.name, never_rewound=True) as reader:
            assert await read_all(reader) == list(range(5))
            await delete_message(bus, stream.name, 5, deadline_s=60.0)
            own_nats.kill()
            await asyncio.to_thread(own_nats.start)
            await fill(bus, stream, range(5, 8))
            assert [int(one.headers["N"]) for one in await reader.read(batch=50, wait_s=30.0)] == [5, 6, 7]
