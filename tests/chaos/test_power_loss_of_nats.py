"""The power goes under nats-server while messages are written: what was acknowledged is there with `sync_interval:
always`, and is of the last seconds where the server syncs later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fabric.synced_nats import SyncedNats
from tests.support.power_disk import PowerDisk, power_disk
from trimtab.embedded.nats_server import SYNC_INTERVAL_S, EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.publisher import MESSAGE_ID_HEADER, publish
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import JobTopology

pytestmark = pytest.mark.slow

_TOPOLOGY = JobTopology("default", "power")
_LOSSES = 6
_LIVES_S = (3.0, 9.0)
_A_MOMENT_S = 1.0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[PowerDisk]:
    with power_disk(tmp_path / "disk", mebibytes=256) as disk:
        yield disk


async def _write(bus: Bus, acknowledged: dict[str, float], *, name: str) -> None:
    """Until the server takes no more."""
    clock, number = asyncio.get_running_loop().time, 0
    while True:
        message_id = f"{name}-{number}"
        subject = _TOPOLOGY.trajectory_subject("solver")
        try:
            await publish(bus, subject, b"x" * 2000, message_id=message_id, deadline_s=5.0)
        except BusError:
            return
        acknowledged[message_id] = clock()
        number += 1
        await asyncio.sleep(0.01)


async def _stored(server: EmbeddedNats) -> set[str]:
    found: set[str] = set()
    async with await Bus.connect(server.settings, name="reader") as bus:
        await declare_stream(bus, _TOPOLOGY.trajectories, deadline_s=60.0)
        async with StreamReader(bus, stream=_TOPOLOGY.trajectories.name, headers_only=True) as reader:
            while not reader.caught_up:
                found |= {delivery.headers[MESSAGE_ID_HEADER] for delivery in await reader.read(batch=512, wait_s=30.0)}
    return found


@pytest.mark.parametrize(
    ("kind", "may_lose_s"),
    [
        pytest.param(SyncedNats, 0.0, id="always"),
        pytest.param(EmbeddedNats, SYNC_INTERVAL_S + _A_MOMENT_S, id="later"),
    ],
)
async def test_no_more_than_was_promised_is_lost_with_the_power(
    disk: PowerDisk, kind: type[EmbeddedNats], may_lose_s: float
) -> None:
    chance = random.Random(20261119)
    everything: dict[str, float] = {}
    for life in range(_LOSSES):
        server = kind(disk.folder / "nats", supervise=False)
        await asyncio.to_thread(server.start)
        assert everything.keys() <= await _stored(server)
        async with await Bus.connect(server.settings, name="writer") as bus:
            acknowledged: dict[str, float] = {}
            writing = [asyncio.create_task(_write(bus, acknowledged, name=f"{life}-{n}")) for n in range(4)]
            await asyncio.sleep(chance.uniform(*_LIVES_S))
            lost_at = asyncio.get_running_loop().time()
            disk.lose_power()
            await asyncio.sleep(0.2)
            server.kill()
            await asyncio.gather(*writing)
        await asyncio.to_thread(server.stop)
        disk.restore_power()
        server = kind(disk.folder / "nats", supervise=False)
        await asyncio.to_thread(server.start)
        there = await _stored(server)
        await asyncio.to_thread(server.stop)
        # What a server that lives on acknowledges without a disk, nobody has asked it to keep.
        before = {one: at for one, at in acknowledged.items() if at <= lost_at}
        lost = sorted((at, one) for one, at in before.items() if one not in there)
        assert all(at >= lost_at - may_lose_s for at, _ in lost), (
            f"lost, {lost_at - lost[0][0]:.1f} s old: {lost[0][1]}"
        )
        everything = {one: at for one, at in (everything | before).items() if one in there}
