"""A NATS user with the rights of rollout pods of one job: a real worker works under it, and it can do nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner
from nats.aio.msg import Msg
from pydantic import SecretStr

from examples.quickstart.make import make_model, make_tokenizer
from tests.integration.rollout.engine_process import EngineProcess
from tests.integration.rollout.job import Job
from tests.integration.rollout.pod_site import NAMESPACE, PodSite, openai_engine
from tests.polling import eventually
from trimtab.embedded.child import Command
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.names import escape_token
from trimtab.fabric.bus.permissions import ROLLOUT_CONSUMER, main, rollout_permissions
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import ConsumerSpec, JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import Signer
from trimtab.rollout.engines.client import EngineClient

TASKS = 3
INBOX = "_INBOX_guest"
# Long enough for an answer that comes, and all that is waited for one that does not.
REFUSED_S = 1.0


class NatsWithGuest(EmbeddedNats):
    """The embedded server, with a second user."""

    guest_job = f"g{uuid.uuid4().hex[:12]}"

    def command(self) -> Command:
        command = super().command()
        file = self.data_folder / "nats.conf"
        config = json.loads(file.read_text())
        permissions = rollout_permissions(JobTopology(NAMESPACE, self.guest_job), inbox_prefix=INBOX)
        config["authorization"]["users"].append({"user": "guest", "password": "guest", "permissions": permissions})
        file.write_text(json.dumps(config))
        return command

    @property
    def guest(self) -> NatsSettings:
        return self.settings.model_copy(update={"user": "guest", "password": SecretStr("guest"), "inbox_prefix": INBOX})


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsWithGuest]:
    with NatsWithGuest(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def bus(nats: NatsWithGuest) -> AsyncIterator[Bus]:
    """Of somebody who may do everything."""
    async with await Bus.connect(nats.settings, name="test") as connected:
        yield connected


@pytest.fixture
async def topology(nats: NatsWithGuest, bus: Bus) -> JobTopology:
    topology = JobTopology(NAMESPACE, nats.guest_job)
    await declare_job(bus, topology, deadline_s=10.0)
    return topology


@pytest.fixture
async def guest(nats: NatsWithGuest, topology: JobTopology) -> AsyncIterator[Bus]:
    async with await Bus.connect(nats.guest, name="guest") as connected:
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


async def test_a_real_worker_completes_tasks_under_it(
    nats: NatsWithGuest,
    bus: Bus,
    topology: JobTopology,
    engine: tuple[EngineProcess, Path],
    object_store_settings: ObjectStoreSettings,
    tmp_path: Path,
) -> None:
    process, model = engine
    site = PodSite(
        folder=tmp_path / "site",
        job=nats.guest_job,
        model=model,
        engine_url=process.url,
        nats=nats.guest,
        store=object_store_settings,
        public_key=Signer.generate().public_text,
        engine=openai_engine(model),
        workflow={"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
    )
    site.lay_out()
    async with EngineClient(process.url, request_timeout_s=30.0) as client:
        await client.wait_healthy(timeout_s=180.0)
    job = Job(bus, topology)
    await job.issue(TASKS, group_size=2)
    environment, _ = site.environment("w0")
    with site.log("w0").open("wb") as log:
        pod = subprocess.Popen(
            [sys.executable, "-m", "trimtab.rollout"], env=os.environ | environment, stdout=log, stderr=log
        )
    try:
        await eventually(job.settled, timeout_s=90.0)
        assert len(await job.trajectories()) == TASKS * 2
        members = KeyValue(bus, topology.members)
        assert (await members.get(escape_token("w0"), deadline_s=10.0)).value
        pod.terminate()
        assert await asyncio.to_thread(pod.wait, 30.0) == 0, site.log("w0").read_text()
    finally:
        pod.kill()
        pod.wait(10.0)
    assert "ermissions" not in site.log("w0").read_text()


async def test_what_workers_do_less_often_is_allowed_too(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    await KeyValue(bus, topology.weights).put("solver", b"pointer", deadline_s=10.0)
    for spec in (topology.swaps, topology.hand_backs, topology.quarantine, topology.members):
        bucket = KeyValue(guest, spec)
        revision = await bucket.create("key", b"1", deadline_s=10.0)
        await bucket.update("key", b"2", revision=revision, deadline_s=10.0)
        assert (await bucket.get("key", deadline_s=10.0)).value == b"2"
        await bucket.delete("key", deadline_s=10.0)
    for spec, keys in ((topology.weights, "solver"), (topology.members, ">")):
        async with KvWatch(KeyValue(guest, spec), keys=keys) as watch:
            await watch.next(deadline_s=10.0)
    # All of it is there already; a pod looks whether it is as it should be.
    await declare_job(guest, topology, deadline_s=10.0)


async def _outcomes(attempts: Sequence[Callable[[], Awaitable[object]]]) -> list[object]:
    return list(await asyncio.gather(*(attempt() for attempt in attempts), return_exceptions=True))


async def _refused_to_guest_alone(
    attempts: Callable[[Bus], Sequence[Callable[[], Awaitable[object]]]], *, guest: Bus, master: Bus
) -> None:
    """The server answers nothing to what is forbidden. Whoever may do everything does the same and gets an answer, so
    that nothing passes for forbidden which is merely impossible."""
    assert {type(outcome) for outcome in await _outcomes(attempts(guest))} == {BusTimeout}
    for attempt in attempts(master):
        await attempt()


async def test_it_can_do_no_harm(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    streams = [*(spec.name for spec in topology.streams), *(spec.stream for spec in topology.buckets)]
    consumer = ConsumerSpec(
        name=ROLLOUT_CONSUMER, stream=topology.tasks.name, ack_wait_s=600.0, max_ack_pending=100_000
    )
    await declare_consumer(bus, consumer, deadline_s=10.0)
    before = [await _state(bus, stream) for stream in streams]

    def writes(by: Bus) -> list[Callable[[], Awaitable[object]]]:
        return [
            lambda: KeyValue(by, topology.weights).put("solver", b"mine", deadline_s=REFUSED_S),
            lambda: KeyValue(by, topology.balance).put("solver.report", b"mine", deadline_s=REFUSED_S),
            lambda: publish(by, topology.ledger_subject, b"mine", message_id="m", deadline_s=REFUSED_S),
            lambda: publish(by, topology.task_subject("rollout"), b"mine", message_id="m", deadline_s=REFUSED_S),
        ]

    def removals(by: Bus) -> list[Callable[[], Awaitable[object]]]:
        operations = [
            *(f"STREAM.PURGE.{stream}" for stream in streams),
            f"CONSUMER.DELETE.{topology.tasks.name}.{ROLLOUT_CONSUMER}",
            *(f"STREAM.DELETE.{stream}" for stream in streams),
        ]
        return [partial(api_call, by, operation, deadline_s=REFUSED_S) for operation in operations]

    everything = [*writes(guest), *removals(guest)]
    assert {type(outcome) for outcome in await _outcomes(everything)} == {BusTimeout}
    assert [await _state(bus, stream) for stream in streams] == before
    await _refused_to_guest_alone(writes, guest=guest, master=bus)
    await _refused_to_guest_alone(removals, guest=guest, master=bus)


async def _state(bus: Bus, stream: str) -> tuple[int, int]:
    state = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=10.0))["state"]
    return state["messages"], state["last_seq"]


async def test_it_gets_and_gives_no_batches(bus: Bus, guest: Bus, topology: JobTopology) -> None:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    subject = topology.batch_subject("solver")
    await bus.subscribe(subject, cb=hear)
    await guest.subscribe(subject, cb=hear)
    await guest.send(subject, b"of the guest")
    # The server takes what a client sends in order.
    await api_call(guest, f"STREAM.INFO.{topology.tasks.name}", deadline_s=10.0)
    await bus.send(subject, b"of a trainer")
    await eventually(lambda: bool(heard), timeout_s=10.0)
    assert heard == [b"of a trainer"]


async def test_it_sees_nothing_of_other_jobs(nats: NatsWithGuest, bus: Bus, guest: Bus) -> None:
    other = JobTopology(NAMESPACE, f"o{uuid.uuid4().hex[:12]}")
    await declare_job(bus, other, deadline_s=10.0)
    job = Job(bus, other)
    await job.issue(1)
    await KeyValue(bus, other.members).put("x", b"here", deadline_s=10.0)

    def reads(by: Bus) -> list[Callable[[], Awaitable[object]]]:
        return [
            partial(api_call, by, f"STREAM.INFO.{other.tasks.name}", deadline_s=REFUSED_S),
            partial(api_call, by, "STREAM.NAMES", {}, deadline_s=REFUSED_S),
            partial(KeyValue(by, other.members).get, "x", deadline_s=REFUSED_S),
        ]

    await _refused_to_guest_alone(reads, guest=guest, master=bus)
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    # Neither what is published, nor the answers to others.
    for subject in (">", "trimtab.>", "$KV.>", "_INBOX.>"):
        await guest.subscribe(subject, cb=hear)
    await KeyValue(bus, other.members).put("loud", b"secret", deadline_s=10.0)
    await job.issue(1, task_id="another")
    await publish(bus, other.trajectory_subject("solver"), b"t", message_id="t", deadline_s=10.0)
    # The server answers in order: what it had for the guest would have come before this.
    await api_call(guest, f"STREAM.INFO.{JobTopology(NAMESPACE, nats.guest_job).tasks.name}", deadline_s=10.0)
    assert heard == []


def test_everybodys_inbox_is_no_inbox_for_a_guest() -> None:
    with pytest.raises(ValueError, match="inbox_prefix"):
        rollout_permissions(JobTopology("t", "j"), inbox_prefix="_INBOX")
    arguments = ["--namespace", "t", "--job", "j", "--inbox-prefix", "_INBOX"]
    assert CliRunner().invoke(main, arguments).exit_code == 2
    printed = CliRunner().invoke(main, [*arguments[:-1], INBOX])
    assert json.loads(printed.output)["subscribe"] == {"allow": [f"{INBOX}.>"]}
