"""What a job with stages allows its pods to do beyond others, on a real server with accounts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.support.fabric.account_users import (
    Attempt,
    administrator_of,
    declared_by_the_operator,
    new_job,
    refused_alone,
    settings_of,
)
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.streams import declare_consumer, declare_job, delete_message
from trimtab.fabric.bus.topology import JobTopology

STAGES = ("reference", "judge")


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as connections:
        yield connections


@pytest.fixture
async def topology(nats: EmbeddedNatsWithAccounts) -> JobTopology:
    topology = new_job("team", stages=STAGES)
    await declared_by_the_operator(nats, topology)
    return topology


async def dialled(
    nats: EmbeddedNatsWithAccounts, role: str, topology: JobTopology, folder: Path, stack: AsyncExitStack
) -> Bus:
    return await stack.enter_async_context(await Bus.connect(settings_of(nats, role, topology, folder), name=role))


async def test_a_task_goes_to_its_stage_and_a_column_to_dataflow_and_trainer(
    nats: EmbeddedNatsWithAccounts, topology: JobTopology, tmp_path: Path, stack: AsyncExitStack
) -> None:
    dataflow, rollout, trainer = [
        await dialled(nats, role, topology, tmp_path, stack) for role in ("dataflow", "rollout", "trainer")
    ]
    for bus in (dataflow, rollout, trainer):
        await declare_job(bus, topology, deadline_s=60.0)
    await publish(rollout, topology.trajectory_subject("solver"), b"row", message_id="r", deadline_s=60.0)
    for stage in STAGES:
        await publish(dataflow, topology.stage_subject(stage), stage.encode(), message_id=stage, deadline_s=60.0)
    for stage in STAGES:
        spec = topology.stage_consumer(stage, lease_s=600.0)
        await declare_consumer(rollout, spec, deadline_s=60.0)
        async with await Puller.open(rollout, stream=spec.stream, consumer=spec.name) as puller:
            (delivery,) = await puller.fetch(batch=8, wait_s=5.0)
            assert delivery.payload == stage.encode()
            row = await get_messages(rollout, topology.trajectories.name, [1], deadline_s=60.0)
            assert row.complete()[1].payload == b"row"
            await publish(rollout, topology.column_subject(stage), b"column", message_id=stage, deadline_s=60.0)
            await delivery.ack_confirmed(deadline_s=60.0)
    for bus in (rollout, trainer):
        columns = await get_messages(bus, topology.columns.name, [1, 2], deadline_s=60.0)
        assert [message.payload for message in columns.complete().values()] == [b"column"] * 2
    async with StreamReader(dataflow, stream=topology.columns.name, headers_only=True) as reader:
        assert len(await reader.read(batch=8, wait_s=5.0)) == 2
    await api_call(dataflow, f"STREAM.PURGE.{topology.columns.name}", {"seq": 2}, deadline_s=60.0)
    stage = STAGES[0]
    again = await publish(dataflow, topology.stage_subject(stage), b"again", message_id="again", deadline_s=60.0)
    consumer = f"{topology.stage_tasks.name}.{topology.stage_consumer_name(stage)}"
    assert (await api_call(dataflow, f"CONSUMER.INFO.{consumer}", deadline_s=60.0))["num_pending"] == 1
    await delete_message(dataflow, topology.stage_tasks.name, again.sequence, deadline_s=60.0)


async def test_nobody_does_another_roles_part(
    nats: EmbeddedNatsWithAccounts, topology: JobTopology, tmp_path: Path, stack: AsyncExitStack
) -> None:
    administrator = await stack.enter_async_context(administrator_of(nats, topology))
    stages, columns = topology.stage_tasks.name, topology.columns.name
    await publish(administrator, topology.column_subject("judge"), b"c", message_id="c", deadline_s=60.0)

    def calls(*operations: str, by: Bus, deadline_s: float) -> list[Attempt]:
        return [partial(api_call, by, operation, deadline_s=deadline_s) for operation in operations]

    def of_rollout(by: Bus, deadline_s: float) -> list[Attempt]:
        forged = [
            partial(publish, by, subject, b"mine", message_id="m", deadline_s=deadline_s)
            for subject in (topology.stage_subject("judge"), topology.column_subject("other"))
        ]
        return [
            *forged,
            *calls(
                f"STREAM.PURGE.{columns}",
                f"CONSUMER.DELETE.{stages}.stage-judge",
                f"CONSUMER.CREATE.{columns}.thief",
                by=by,
                deadline_s=deadline_s,
            ),
        ]

    def of_trainer(by: Bus, deadline_s: float) -> list[Attempt]:
        return [
            partial(publish, by, topology.column_subject("judge"), b"mine", message_id="m", deadline_s=deadline_s),
            *calls(f"STREAM.PURGE.{columns}", f"CONSUMER.INFO.{stages}.stage-judge", by=by, deadline_s=deadline_s),
        ]

    def of_dataflow(by: Bus, deadline_s: float) -> list[Attempt]:
        return [
            partial(publish, by, topology.column_subject("judge"), b"mine", message_id="m", deadline_s=deadline_s),
            partial(get_messages, by, columns, [1], deadline_s=deadline_s),
            *calls(f"CONSUMER.DELETE.{stages}.stage-judge", f"STREAM.PURGE.{stages}", by=by, deadline_s=deadline_s),
        ]

    for role, attempts in (("rollout", of_rollout), ("trainer", of_trainer), ("dataflow", of_dataflow)):
        bus = await dialled(nats, role, topology, tmp_path, stack)
        await refused_alone(attempts, to=bus, administrator=administrator)
