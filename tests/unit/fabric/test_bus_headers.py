"""Headers are read as the client library reads them, only sooner."""

from __future__ import annotations

import pytest

from trimtab.fabric.bus.client import EnduringClient, plain_headers


@pytest.mark.parametrize(
    "raw",
    [
        b'NATS/1.0\r\nNats-Msg-Id: t1.solver.0\r\nTrimtab-Trajectory: [1,"a: b",null]\r\n\r\n',
        b"NATS/1.0\r\nempty:\r\nspaced:   x  \r\n\r\n",
        b"NATS/1.0\r\nname: caf\xc3\xa9\r\n\r\n",
    ],
)
async def test_ordinary_headers_read_as_the_library_reads_them(raw: bytes) -> None:
    client = EnduringClient(tls=None)
    library = await super(EnduringClient, client)._process_headers(raw)
    assert plain_headers(raw) == library
    assert await client._process_headers(raw) == library


@pytest.mark.parametrize(
    "raw",
    [
        b"NATS/1.0 404 No Messages\r\n\r\n",
        b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 10\r\n\r\n",
        b"NATS/1.0\r\nno colon\r\n\r\n",
        b"NATS/1.0\r\na b: c\r\n\r\n",
        b"NATS/1.0\r\nbroken: \xff\r\n\r\n",
    ],
)
async def test_all_others_are_left_to_the_library(raw: bytes) -> None:
    assert plain_headers(raw) is None
    client = EnduringClient(tls=None)
    assert await client._process_headers(raw) == await super(EnduringClient, client)._process_headers(raw)


async def test_a_message_without_headers_has_none() -> None:
    assert await EnduringClient(tls=None)._process_headers(None) is None
