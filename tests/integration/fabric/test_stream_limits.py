"""What a job's streams may take on real servers: little while it is idle, what an administrator has raised stays, and
what a server cannot give is refused by its field."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fabric.nats_cluster import nats_cluster
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusRefused, StreamFull, TopologyMismatch
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.stream_limits import Placement, StreamLimits
from trimtab.fabric.bus.streams import declare_job, declare_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.operator.job_watch import streams_refusal

D = 60.0
_MIB = 1 << 20


@pytest.fixture
async def bus(nats_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats_settings, name="test") as connected:
        yield connected


@pytest.fixture
def topology() -> JobTopology:
    return JobTopology("team", f"j{uuid.uuid4().hex[:10]}", stages=("judge",))


async def config(bus: Bus, stream: str) -> dict[str, Any]:
    found: dict[str, Any] = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=D))["config"]
    return found


async def by_hand(bus: Bus, stream: str, **values: Any) -> None:
    """As an administrator does it, with `nats stream edit`."""
    await api_call(bus, f"STREAM.UPDATE.{stream}", await config(bus, stream) | values, deadline_s=D)


async def test_an_idle_job_has_less_than_4_mib_set_aside(own_nats: EmbeddedNats, topology: JobTopology) -> None:
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=D)
        info = await api_call(bus, "INFO", deadline_s=D)
        bounds = [(await config(bus, name))["max_bytes"] for name in _names(topology)]
        assert 0 < sum(bound for bound in bounds if bound > 0) < 4 * _MIB
        assert info["reserved_storage"] + info["storage"] < 4 * _MIB


def _names(topology: JobTopology) -> list[str]:
    return [*(spec.name for spec in topology.streams), *(bucket.stream for bucket in topology.buckets)]


async def test_bytes_and_messages_are_shared_out_and_the_ledger_has_no_part_in_it(
    bus: Bus, topology: JobTopology
) -> None:
    limits = StreamLimits(max_bytes=64 * _MIB, max_messages=1000)
    limited = topology.limited(limits)
    await declare_job(bus, limited, deadline_s=D)
    sizes = {spec.name: (await config(bus, spec.name))["max_bytes"] for spec in limited.streams}
    assert sizes.pop(limited.ledger.name) == -1
    assert sum(sizes.values()) == 64 * _MIB
    assert min(sizes.values()) == 8 * _MIB
    assert (await config(bus, limited.trajectories.name))["max_msgs"] == 1000
    assert (await config(bus, limited.tasks.name))["max_msgs"] == -1


async def test_what_an_administrator_raised_stays_and_what_the_manifest_changes_is_changed(
    bus: Bus, topology: JobTopology
) -> None:
    small = topology.limited(StreamLimits(max_bytes=64 * _MIB))
    stream = small.trajectories.name
    await declare_job(bus, small, deadline_s=D)
    first = (await config(bus, stream))["max_bytes"]
    await by_hand(bus, stream, max_bytes=4 * first)
    for _ in range(2):
        await declare_job(bus, small, deadline_s=D)
        assert (await config(bus, stream))["max_bytes"] == 4 * first
    await declare_job(bus, topology.limited(StreamLimits(max_bytes=32 * _MIB)), deadline_s=D)
    assert (await config(bus, stream))["max_bytes"] == 4 * first, "also when the manifest asks for less"
    assert (await config(bus, small.tasks.name))["max_bytes"] == 4 * _MIB, "what nobody has touched follows it"
    await declare_job(bus, topology.limited(StreamLimits(max_bytes=640 * _MIB)), deadline_s=D)
    assert (await config(bus, stream))["max_bytes"] == 10 * first, "and more than by hand is given"
    await by_hand(bus, stream, max_bytes=first)
    await declare_job(bus, topology.limited(StreamLimits(max_bytes=640 * _MIB)), deadline_s=D)
    assert (await config(bus, stream))["max_bytes"] == 10 * first, "what was lowered by hand is put back"


async def test_a_pod_that_knows_no_limits_leaves_streams_as_they_are(bus: Bus, topology: JobTopology) -> None:
    limited = topology.limited(StreamLimits(max_bytes=64 * _MIB))
    await declare_job(bus, limited, deadline_s=D)
    before = await config(bus, limited.trajectories.name)
    await declare_job(bus, topology, deadline_s=D, may_change=False)
    assert await config(bus, limited.trajectories.name) == before


async def test_a_limit_below_what_is_stored_deletes_nothing(bus: Bus, topology: JobTopology) -> None:
    await declare_job(bus, topology, deadline_s=D)
    for number in range(100):
        await publish(bus, topology.trajectory_subject("solver"), bytes(100_000), message_id=f"m{number}")
    await declare_stream(bus, replace(topology.trajectories, max_bytes=_MIB), deadline_s=D)
    info = await api_call(bus, f"STREAM.INFO.{topology.trajectories.name}", deadline_s=D)
    assert (info["config"]["max_bytes"], info["state"]["messages"]) == (_MIB, 100)
    with pytest.raises(StreamFull):
        await publish(bus, topology.trajectory_subject("solver"), b"x", message_id="more", deadline_s=5.0)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (StreamLimits(replicas=3), "spec.streams.replicas"),
        (StreamLimits(max_bytes=1 << 49), "spec.streams.maxBytes"),
        (StreamLimits(placement=Placement(cluster="elsewhere")), "spec.streams.placement"),
    ],
)
async def test_what_the_server_has_not_is_refused_with_the_field(
    bus: Bus, topology: JobTopology, limits: StreamLimits, field: str
) -> None:
    with pytest.raises((BusRefused, StreamFull, TopologyMismatch)) as refused:
        await declare_job(bus, topology.limited(limits), deadline_s=5.0)
    assert streams_refusal(refused.value).startswith(field), refused.value


async def test_three_servers_keep_three_replicas_and_an_administrator_may_have_raised_them(
    tmp_path: Path, topology: JobTopology
) -> None:
    async with nats_cluster(tmp_path) as cluster, await Bus.connect(cluster.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=D)
        await by_hand(bus, topology.ledger.name, num_replicas=3)
        await declare_job(bus, topology, deadline_s=D)
        assert (await config(bus, topology.ledger.name))["num_replicas"] == 3
        assert (await config(bus, topology.tasks.name))["num_replicas"] == 1
        await declare_job(bus, topology.limited(StreamLimits(replicas=3)), deadline_s=D)
        assert {(await config(bus, name))["num_replicas"] for name in _names(topology)} == {3}
        with pytest.raises((BusRefused, TopologyMismatch)) as refused:
            await declare_job(bus, topology.limited(StreamLimits(replicas=5)), deadline_s=5.0)
        assert streams_refusal(refused.value).startswith("spec.streams.replicas")
