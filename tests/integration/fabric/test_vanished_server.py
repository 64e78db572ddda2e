"""A server of several that vanishes without closing a connection: its clients are with another within seconds, and
those that begin now find one too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.polling import eventually
from tests.support.remote.cuttable_line import CuttableLine
from trimtab.embedded.ports import LOOPBACK
from trimtab.fabric.bus.connection import PING_INTERVAL_S, Bus, BusState
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.settings import NatsSettings

Lines = tuple[CuttableLine, CuttableLine]


@pytest.fixture
def lines(nats_settings: NatsSettings) -> Iterator[Lines]:
    """As two servers, to clients."""
    port = int(nats_settings.servers[0].rpartition(":")[2])
    with CuttableLine(port) as vanishing, CuttableLine(port) as staying:
        yield vanishing, staying


def _of_both(settings: NatsSettings, lines: Lines, *, connect_timeout_s: float) -> NatsSettings:
    servers = tuple(f"nats://{LOOPBACK}:{line.port}" for line in lines)
    return settings.model_copy(update={"servers": servers, "connect_timeout_s": connect_timeout_s})


async def test_a_server_that_vanishes_is_left_within_three_pings(nats_settings: NatsSettings, lines: Lines) -> None:
    vanishing, staying = lines
    staying.cut()
    async with await Bus.connect(_of_both(nats_settings, lines, connect_timeout_s=60.0), name="test") as bus:
        await api_call(bus, "INFO", deadline_s=60.0)
        staying.mend()
        moved = staying.bytes_moved
        vanishing.hang()
        vanished_at = time.monotonic()
        await eventually(lambda: bus.epoch == 1, timeout_s=30.0)
        noticed_s = time.monotonic() - vanished_at
        await eventually(lambda: bus.state is BusState.CONNECTED, timeout_s=10.0)
        assert staying.bytes_moved > moved, "it dials the one that is there"
        await api_call(bus, "INFO", deadline_s=60.0)
    assert noticed_s < 3 * PING_INTERVAL_S + 3.0


async def test_a_client_that_begins_then_finds_the_other(nats_settings: NatsSettings, lines: Lines) -> None:
    lines[0].hang()
    settings = _of_both(nats_settings, lines, connect_timeout_s=3.0)
    for _ in range(4):  # in which order it dials them is chance
        async with await Bus.connect(settings, name="test") as bus:
            await api_call(bus, "INFO", deadline_s=60.0)
