"""A replica that has not caught up answers reads too. What it does not have yet is not gone."""

from __future__ import annotations

import os
import signal
import uuid
from pathlib import Path

import pytest

from tests.support.fabric.nats_cluster import nats_cluster
from tests.support.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.stream_limits import StreamLimits
from trimtab.fabric.bus.streams import declare_stream, delete_message
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.window import WindowedPublisher

D = 60.0
_MESSAGES, _BYTES = 600, 200_000


@pytest.mark.slow
async def test_what_a_lagging_replica_has_not_is_waited_for_and_what_was_deleted_is_not(tmp_path: Path) -> None:
    topology = JobTopology("team", f"j{uuid.uuid4().hex[:10]}").limited(StreamLimits(replicas=3))
    stream = topology.trajectories.name
    async with nats_cluster(tmp_path) as cluster:
        async with await Bus.connect(cluster.settings, name="writer") as writer:
            await declare_stream(writer, topology.trajectories, deadline_s=D)
            leader = await cluster.leader_of(writer, stream)
            laggard = next(server for name, server in cluster.servers.items() if name != leader)
            others = tuple(one.settings.servers[0] for one in cluster.servers.values() if one is not laggard)
            pid = laggard.pid
            assert pid is not None
            async with await Bus.connect(
                cluster.settings.model_copy(update={"servers": others}), name="elsewhere"
            ) as elsewhere:
                os.kill(pid, signal.SIGSTOP)
                try:
                    async with WindowedPublisher(
                        elsewhere, max_messages=64, max_bytes=32 << 20, deadline_s=D
                    ) as publisher:
                        for number in range(_MESSAGES):
                            await publisher.publish(
                                topology.trajectory_subject("solver"), os.urandom(_BYTES), message_id=f"m{number}"
                            )
                    await delete_message(elsewhere, stream, 7, deadline_s=D)
                finally:
                    os.kill(pid, signal.SIGCONT)
        # Its own replica answers who is connected to it.
        async with await Bus.connect(laggard.settings, name="reader") as reader:

            async def read() -> tuple[int, ...]:
                return (await get_messages(reader, stream, range(1, _MESSAGES + 1), deadline_s=D)).missing

            async def knows_the_stream() -> bool:
                return await cluster.leader_of(reader, stream) is not None

            await eventually(knows_the_stream, timeout_s=D)
            assert set(await read()) <= {7}, "what it has not is waited for"

            async def knows_of_the_deletion() -> bool:
                return await read() == (7,)

            await eventually(knows_of_the_deletion, timeout_s=D)
            await api_call(reader, f"STREAM.PURGE.{stream}", {"seq": 100}, deadline_s=D)
            assert (await get_messages(reader, stream, [50, 99, _MESSAGES], deadline_s=D)).missing == (50, 99)
