"""A NATS user with the rights of rollout pods of one job: a real worker works under it, and it can do nothing else."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from examples.quickstart.make import make_model, make_tokenizer
from tests.support.fabric.account_users import (
    Attempt,
    administrator_of,
    declared_by_the_operator,
    new_job,
    refused,
    refused_alone,
    settings_of,
    states,
    stream_names,
    violations,
)
from tests.support.polling import eventually
from tests.support.rollout.engine_process import EngineProcess
from tests.support.rollout.job import Job
from tests.support.rollout.pod_site import NAMESPACE, PodSite, openai_engine
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.bus.permissions import rollout_rights
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer

TASKS = 3


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def topology(nats: EmbeddedNatsWithAccounts) -> JobTopology:
    topology = new_job(NAMESPACE)
    await declared_by_the_operator(nats, topology)
    return topology


@pytest.fixture
async def bus(nats: EmbeddedNatsWithAccounts, topology: JobTopology) -> AsyncIterator[Bus]:
    """May do everything to the job."""
    async with administrator_of(nats, topology) as connected:
        yield connected


@pytest.fixture
def guest_settings(nats: EmbeddedNatsWithAccounts, topology: JobTopology, tmp_path: Path) -> NatsSettings:
    return settings_of(nats, "rollout", topology, tmp_path)


@pytest.fixture
async def guest(guest_settings: NatsSettings) -> AsyncIterator[Bus]:
    async with await Bus.connect(guest_settings, name="guest") as connected:
        yield connected


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EngineProcess, Path]]:
    model = tmp_path_factory.mktemp("model")
    make_model(model, seed=0)
    make_tokenizer(model)
    process = EngineProcess(model, tmp_path_factory.mktemp("engine"))
    process.start()
    yield process, model
    process.kill()


@pytest.mark.slow
async def test_a_real_worker_completes_tasks_under_it(
    nats: EmbeddedNatsWithAccounts,
    guest_settings: NatsSettings,
    bus: Bus,
    topology: JobTopology,
    engine: tuple[EngineProcess, Path],
    object_store_settings: ObjectStoreSettings,
    tmp_path: Path,
) -> None:
    before = violations(nats)
    process, model = engine
    site = PodSite(
        folder=tmp_path / "site",
        job=topology.job,
        model=model,
        engine_url=process.url,
        nats=guest_settings,
        store=object_store_settings,
        public_key=Signer.generate().public_text,
        engine=openai_engine(model),
        workflow={"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
    )
    site.lay_out()
    await process.serves()
    job = Job(bus, topology)
    await job.issue(TASKS, group_size=2)
    environment, _ = site.environment("w0")
    with site.log("w0").open("wb") as log:
        pod = subprocess.Popen(
            [sys.executable, "-m", "trimtab.rollout"], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        await eventually(job.settled, timeout_s=90.0, ended=pod.poll)
        assert len(await job.trajectories()) == TASKS * 2
        members = KeyValue(bus, topology.members)
        assert (await members.get(escape_token("w0"), deadline_s=60.0)).value
        pod.terminate()
        assert await asyncio.to_thread(pod.wait, 30.0) == 0, site.log("w0").read_text()
    finally:
        pod.kill()
        pod.wait(120.0)
    assert "ermissions" not in site.log("w0").read_text()
    assert violations(nats) == before


async def test_what_workers_do_less_often_is_allowed_too(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    await KeyValue(bus, topology.weights).put("solver", b"pointer", deadline_s=60.0)
    for spec in (topology.swaps, topology.hand_backs, topology.quarantine, topology.members):
        bucket = KeyValue(guest, spec)
        revision = await bucket.create("key", b"1", deadline_s=60.0)
        await bucket.update("key", b"2", revision=revision, deadline_s=60.0)
        assert (await bucket.get("key", deadline_s=60.0)).value == b"2"
        await bucket.delete("key", deadline_s=60.0)
    for spec, keys in ((topology.weights, "solver"), (topology.members, ">")):
        async with KvWatch(KeyValue(guest, spec), keys=keys) as watch:
            await watch.next(deadline_s=60.0)
    # All of it is there already; a pod looks whether it is as it should be.
    await declare_job(guest, topology, deadline_s=60.0)


async def test_it_can_do_no_harm(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    streams = stream_names(topology)
    before = await states(bus, topology)

    def writes(by: Bus, deadline_s: float) -> list[Attempt]:
        return [
            lambda: KeyValue(by, topology.weights).put("solver", b"mine", deadline_s=deadline_s),
            lambda: KeyValue(by, topology.balance).put("solver.report", b"mine", deadline_s=deadline_s),
            lambda: publish(by, topology.ledger_subject, b"mine", message_id="m", deadline_s=deadline_s),
            lambda: publish(by, topology.task_subject("rollout"), b"mine", message_id="m", deadline_s=deadline_s),
        ]

    def removals(by: Bus, deadline_s: float) -> list[Attempt]:
        operations = [
            *(f"STREAM.PURGE.{stream}" for stream in streams),
            f"CONSUMER.DELETE.{topology.tasks.name}.{TASK_CONSUMER}",
            *(f"STREAM.DELETE.{stream}" for stream in streams),
        ]
        return [partial(api_call, by, operation, deadline_s=deadline_s) for operation in operations]

    await refused(lambda by, deadline_s: [*writes(by, deadline_s), *removals(by, deadline_s)], to=guest)
    assert await states(bus, topology) == before
    await refused_alone(writes, to=guest, administrator=bus)
    await refused_alone(removals, to=guest, administrator=bus)


async def test_it_makes_no_consumers_which_could_deliver_to_anybody(
    bus: Bus, guest: Bus, topology: JobTopology
) -> None:
    """The server delivers in its own name: made by this user, one of these would write into the job's ledger."""
    await KeyValue(guest, topology.members).put("x", b"forged", deadline_s=60.0)

    def makes(by: Bus, deadline_s: float) -> list[Attempt]:
        attempts: list[Attempt] = []
        for stream in stream_names(topology):
            for name in (TASK_CONSUMER, "thief"):
                config = {"name": name, "ack_policy": "none", "deliver_subject": topology.ledger_subject}
                body = {"stream_name": stream, "config": config}
                durable = body | {"config": config | {"durable_name": name}}
                filtered = body | {"config": config | {"filter_subject": f"$KV.{topology.members.name}.>"}}
                for operation, content in (
                    (f"CONSUMER.CREATE.{stream}", body),
                    (f"CONSUMER.CREATE.{stream}.{name}", body),
                    (f"CONSUMER.CREATE.{stream}.{name}.$KV.{topology.members.name}.>", filtered),
                    (f"CONSUMER.DURABLE.CREATE.{stream}.{name}", durable),
                ):
                    attempts.append(partial(api_call, by, operation, content, deadline_s=deadline_s))
        return attempts

    await refused(makes, to=guest)
    assert (await states(bus, topology))[topology.ledger.name] == (0, 0)
    await refused_alone(makes, to=guest, administrator=bus)
    # This is what it is kept from.
    await _spoilt(bus, topology)


async def _spoilt(bus: Bus, topology: JobTopology) -> None:
    """If it is not, the server does not deliver into streams, and the right to make consumers could be given."""

    async def is_spoilt() -> bool:
        return (await states(bus, topology))[topology.ledger.name] != (0, 0)

    await eventually(is_spoilt, timeout_s=10.0)


async def test_it_reads_neither_trajectories_nor_the_ledger(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    subject = topology.trajectory_subject("solver")
    await publish(guest, subject, b"mine, and written only", message_id="t", deadline_s=60.0)
    await publish(bus, topology.ledger_subject, b"a decision", message_id="l", deadline_s=60.0)

    def reads(by: Bus, deadline_s: float) -> list[Attempt]:
        operations: list[tuple[str, dict[str, Any]]] = []
        for stream in (topology.trajectories.name, topology.ledger.name):
            consumer: dict[str, Any] = {"stream_name": stream, "config": {"name": "thief", "ack_policy": "none"}}
            operations += [
                (f"STREAM.MSG.GET.{stream}", {"seq": 1}),
                (f"CONSUMER.CREATE.{stream}.thief", consumer),
                (f"CONSUMER.CREATE.{stream}", consumer),
                (f"CONSUMER.LIST.{stream}", {}),
            ]
        direct = partial(get_messages, by, topology.trajectories.name, [1], deadline_s=deadline_s)
        return [direct, *(partial(api_call, by, *operation, deadline_s=deadline_s) for operation in operations)]

    await refused_alone(reads, to=guest, administrator=bus)


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as connections:
        yield connections


async def test_it_gets_and_gives_no_batches(
    nats: EmbeddedNatsWithAccounts, guest: Bus, topology: JobTopology, tmp_path: Path, stack: AsyncExitStack
) -> None:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    subject = topology.batch_subject("solver")
    dataflow, trainer = [
        await stack.enter_async_context(await Bus.connect(settings_of(nats, role, topology, tmp_path), name=role))
        for role in ("dataflow", "trainer")
    ]
    await dataflow.subscribe(subject, cb=hear)
    await guest.subscribe(subject, cb=hear)
    await api_call(dataflow, f"STREAM.INFO.{topology.tasks.name}", deadline_s=60.0)
    await guest.send(subject, b"of the guest")
    # The server takes what a client sends in order.
    await api_call(guest, f"STREAM.INFO.{topology.tasks.name}", deadline_s=60.0)
    await trainer.send(subject, b"of a trainer")
    await eventually(lambda: bool(heard), timeout_s=10.0)
    assert heard == [b"of a trainer"]


async def test_it_sees_nothing_of_other_jobs(
    nats: EmbeddedNatsWithAccounts, guest: Bus, topology: JobTopology, stack: AsyncExitStack
) -> None:
    other = new_job(NAMESPACE)
    await declared_by_the_operator(nats, other)
    bus = await stack.enter_async_context(administrator_of(nats, other))
    job = Job(bus, other)
    await job.issue(1)
    await KeyValue(bus, other.members).put("x", b"here", deadline_s=60.0)

    def reads(by: Bus, deadline_s: float) -> list[Attempt]:
        return [
            partial(api_call, by, f"STREAM.INFO.{other.tasks.name}", deadline_s=deadline_s),
            partial(api_call, by, "STREAM.NAMES", {}, deadline_s=deadline_s),
            partial(KeyValue(by, other.members).get, "x", deadline_s=deadline_s),
        ]

    await refused_alone(reads, to=guest, administrator=bus)
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    # Neither what is published, nor the answers to others.
    for subject in (">", "trimtab.>", "$KV.>", "_INBOX.>"):
        await guest.subscribe(subject, cb=hear)
    await KeyValue(bus, other.members).put("loud", b"secret", deadline_s=60.0)
    await job.issue(1, task_id="another")
    await publish(bus, other.trajectory_subject("solver"), b"t", message_id="t", deadline_s=60.0)
    # The server answers in order: what it had for the guest would have come before this.
    await api_call(guest, f"STREAM.INFO.{topology.tasks.name}", deadline_s=60.0)
    assert heard == []


def test_everybodys_inbox_is_no_inbox_for_a_guest() -> None:
    with pytest.raises(ValueError, match="inbox_prefix"):
        rollout_rights(JobTopology("t", "j"), inbox_prefix="_INBOX")
