"""Rows in the stream of a job, and the environment in which commands find its server."""

from __future__ import annotations

from collections.abc import Sequence

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.trajectory import Trajectory


async def fill(
    settings: NatsSettings,
    topology: JobTopology,
    rows: Sequence[Trajectory | tuple[Trajectory, bytes]],
    *,
    ledger: Sequence[Message] = (),
) -> None:
    """With a payload of its own, such as a claim, where a row has one."""
    async with await Bus.connect(settings, name="test") as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        for row in rows:
            one, payload = row if isinstance(row, tuple) else (row, encode(row))
            said = headers(one)
            await publish(
                bus, topology.trajectory_subject(one.policy), payload, message_id=one.message_id, headers=said
            )
        for number, record in enumerate(ledger):
            await publish(bus, topology.ledger_subject, encode(record), message_id=f"r{number}")


def nats_environment(settings: NatsSettings) -> dict[str, str]:
    assert settings.user is not None
    assert settings.password is not None
    return {
        "TRIMTAB_NATS__SERVERS": ",".join(settings.servers),
        "TRIMTAB_NATS__USER": settings.user,
        "TRIMTAB_NATS__PASSWORD": settings.password.get_secret_value(),
        "TRIMTAB_NATS__REQUEST_TIMEOUT_S": "60",
    }
