"""A stream is copied into a file and made anew from it: the same messages under the same numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound, BusRefused
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.stream_copy import copy_stream, restore_stream
from trimtab.fabric.bus.streams import declare_stream, delete_message, delete_stream
from trimtab.fabric.bus.topology import StreamSpec

SPEC = StreamSpec(name="COPIED", subjects=("copied.>",))


async def stored(bus: Bus) -> list[tuple[int, str, bytes]]:
    found = []
    async with StreamReader(bus, stream=SPEC.name) as reader:
        while not reader.caught_up:
            found += [
                (one.sequence, one.headers.get("Kind", ""), one.payload)
                for one in await reader.read(batch=100, wait_s=30.0)
            ]
    return found


async def test_messages_come_back_under_their_numbers(own_nats: EmbeddedNats, tmp_path: Path) -> None:
    file = tmp_path / "copy"
    async with await Bus.connect(own_nats.settings, name="copying") as bus:
        await declare_stream(bus, SPEC, deadline_s=30.0)
        for number in range(40):
            body = bytes([number]) * 40_000
            await publish(bus, "copied.x", body, message_id=str(number), headers={"Kind": str(number)}, deadline_s=30.0)
        for sequence in (1, 2, 7):
            await delete_message(bus, SPEC.name, sequence, deadline_s=30.0)
        before = await stored(bus)
        copy = await copy_stream(bus, SPEC.name, file, deadline_s=30.0)
        assert (copy.messages, copy.first_sequence) == (37, 3)

        with pytest.raises(BusRefused):
            await restore_stream(bus, copy, file, deadline_s=30.0)
        await delete_stream(bus, SPEC.name, deadline_s=30.0)
        await restore_stream(bus, copy, file, deadline_s=30.0)
        assert await stored(bus) == before
        acknowledged = await publish(bus, "copied.x", b"next", message_id="next", deadline_s=30.0)
        assert acknowledged.sequence == 41


async def test_what_is_not_whole_makes_no_stream(own_nats: EmbeddedNats, tmp_path: Path) -> None:
    file = tmp_path / "copy"
    async with await Bus.connect(own_nats.settings, name="copying") as bus:
        with pytest.raises(BusNotFound):
            await copy_stream(bus, SPEC.name, file, deadline_s=30.0)
        await declare_stream(bus, SPEC, deadline_s=30.0)
        for number in range(20):
            await publish(bus, "copied.x", bytes(50_000), message_id=str(number), deadline_s=30.0)
        copy = await copy_stream(bus, SPEC.name, file, deadline_s=30.0)
        await delete_stream(bus, SPEC.name, deadline_s=30.0)
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(BusError):
            await restore_stream(bus, copy, file, deadline_s=30.0)
        with pytest.raises(BusNotFound):
            await api_call(bus, f"STREAM.INFO.{SPEC.name}", deadline_s=30.0)
