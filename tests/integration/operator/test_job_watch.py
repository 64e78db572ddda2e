"""What a job says of itself, followed through trouble on the bus."""

from __future__ import annotations

import asyncio

from tests.polling import eventually
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.progress import StepProgress
from trimtab.operator.job_watch import JobWatch


def progress(step: int) -> bytes:
    return encode(
        StepProgress(
            job="job", policy="solver", step=step, reward=0.5, staleness=0.0, max_staleness=0, wait_fraction=0.0,
            samples=1, buffered=0, running=0, dropped=0, at=1.0,
        )
    )  # fmt: skip


async def test_the_watch_survives_a_killed_server_and_nonsense(own_nats: EmbeddedNats) -> None:
    topology = JobTopology("default", "job")
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=10.0)
        bucket = KeyValue(bus, topology.balance)
        watch = JobWatch(bus, topology, ["solver"])
        watching = asyncio.create_task(watch.run())

        def newest() -> int:
            assert not watching.done()
            steps = watch.policies["solver"].steps
            return steps[-1].step if steps else -1

        key = topology.progress_key("solver")
        await bucket.put(key, progress(0), deadline_s=10.0)
        await eventually(lambda: newest() == 0, timeout_s=10.0)
        await bucket.put(key, b"nonsense", deadline_s=10.0)
        await bucket.put(key, progress(1), deadline_s=10.0)
        await eventually(lambda: newest() == 1, timeout_s=10.0)
        own_nats.kill()
        await asyncio.to_thread(own_nats.start)
        await bucket.put(key, progress(2), deadline_s=20.0)
        await eventually(lambda: newest() == 2, timeout_s=20.0)
        assert [one.step for one in watch.policies["solver"].steps] == [0, 1, 2]
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
