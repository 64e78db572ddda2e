"""Users of a job's trainer and dataflow, and of the operator: the real parts work under their rights, and they have no
others; no user of one job reaches another job; what has expired is refused until it is renewed.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from tests.support.dataflow.jobs import job
from tests.support.dataflow.simulation import Simulation, running
from tests.support.fabric.account_users import (
    Attempt,
    administrator_of,
    declared_by_the_operator,
    forgotten,
    new_job,
    operator_bus,
    refused,
    refused_alone,
    registered,
    registrars_bus,
    settings_of,
    states,
    stream_names,
    violations,
)
from tests.support.polling import eventually
from trimtab.dataflow.ledger.journal import Journal
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus, BusState
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.errors import BusNotFound, BusRefused, BusUnauthenticated, BusUnavailable, StreamFull
from trimtab.fabric.bus.fleet_note import FleetNote, read_fleet_note, write_fleet_note
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch
from trimtab.fabric.bus.permissions import RIGHTS_OF
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_job, delete_message, delete_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.registry import register
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.publisher import announce

NAMESPACE = "default"
STEPS = 9
ROLES = tuple(RIGHTS_OF)


@dataclass(frozen=True)
class Jobs:
    server: EmbeddedNatsWithAccounts
    ours: JobTopology
    other: JobTopology
    administrator: Bus
    their_administrator: Bus
    folder: Path

    async def dial(self, role: str) -> Bus:
        return await Bus.connect(settings_of(self.server, role, self.ours, self.folder), name=role)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def jobs(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> AsyncIterator[Jobs]:
    ours, other = new_job(NAMESPACE), new_job(NAMESPACE)
    await declared_by_the_operator(nats, ours, other)
    async with administrator_of(nats, ours) as administrator, administrator_of(nats, other) as theirs:
        yield Jobs(nats, ours, other, administrator, theirs, tmp_path)


async def test_dataflow_and_trainer_work_under_their_rights(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> None:
    # Snapshots after every few steps: the ledger is read, compacted and purged.
    small = partial(Journal, compact_after_bytes=600)
    before = violations(nats)
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(50)))
    desired = job(f"j{uuid.uuid4().hex[:10]}")
    topology = JobTopology(NAMESPACE, desired.metadata.name)
    settings = {role: settings_of(nats, role, topology, tmp_path) for role in ROLES}
    await registered(nats, topology)
    async with await Bus.connect(settings["trainer"], name="trainer") as trainer:
        dataflow = Simulation(
            settings=settings["dataflow"], folder=tmp_path, job=desired, bus=trainer, make_journal=small
        )
        workers = replace(dataflow, settings=settings["rollout"])
        async with dataflow.service(), running(workers.work()):
            # They wait for what they may not make.
            await declared_by_the_operator(nats, topology)
            assert await dataflow.train(steps=range(STEPS), seen={}) == STEPS
        # Another one finds what the first has written.
        async with dataflow.service(), running(workers.work()):
            assert await dataflow.train(steps=range(STEPS, 2 * STEPS), seen={}) == 2 * STEPS
            lease = await dataflow.lease(2 * STEPS)
            assert lease is not None
            rows = [sample.sequence for sample in lease.samples]
            (await get_messages(trainer, lease.stream, rows, deadline_s=60.0)).complete()
    assert violations(nats) == before


async def test_what_trainer_and_dataflow_do_less_often_is_allowed_too(jobs: Jobs) -> None:
    before = violations(jobs.server)
    pointer = WeightPointer(
        job=jobs.ours.job,
        policy="solver",
        version=1,
        epoch=1,
        manifest_key="m",
        manifest_digest="blake3:" + "0" * 64,
        size_bytes=1,
        published_at=time.time(),
    )
    async with await jobs.dial("trainer") as trainer:
        for _ in range(2):
            await announce(KeyValue(trainer, jobs.ours.weights), pointer, deadline_s=60.0)
        await KeyValue(trainer, jobs.ours.members).put("rank", b"here", deadline_s=60.0)
    async with await jobs.dial("dataflow") as dataflow:
        for spec in (jobs.ours.weights, jobs.ours.members):
            async with KvWatch(KeyValue(dataflow, spec)) as watch:
                await watch.next(deadline_s=60.0)
        balance = KeyValue(dataflow, jobs.ours.balance)
        key = jobs.ours.evaluation_key("solver", "exam", version=1)
        with pytest.raises(BusNotFound):
            await balance.get(key, deadline_s=60.0)
        await balance.create(key, b"1", deadline_s=60.0)
        # How it finds out that a record whose acknowledgement was lost is there.
        await publish(dataflow, jobs.ours.ledger_subject, b"r", message_id="r", deadline_s=60.0)
        await api_call(dataflow, f"STREAM.MSG.GET.{jobs.ours.ledger.name}", {"seq": 1}, deadline_s=60.0)
        tasks = jobs.ours.tasks.name
        task = await publish(dataflow, jobs.ours.task_subject("rollout"), b"t", message_id="t", deadline_s=60.0)
        await delete_message(dataflow, tasks, task.sequence, deadline_s=60.0)
        await api_call(dataflow, f"CONSUMER.INFO.{tasks}.rollout", deadline_s=60.0)
    assert violations(jobs.server) == before


async def test_a_pod_waits_for_streams_that_it_may_not_make(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> None:
    topology = new_job(NAMESPACE)
    await registered(nats, topology)
    async with await Bus.connect(settings_of(nats, "rollout", topology, tmp_path), name="early") as bus:
        with pytest.raises(BusNotFound, match="the operator"):
            await declare_job(bus, topology, deadline_s=0.5)
        waiting = asyncio.create_task(declare_job(bus, topology, deadline_s=60.0))
        await declared_by_the_operator(nats, topology)
        await waiting


def _stream_operations(topology: JobTopology) -> list[tuple[str, dict[str, Any]]]:
    """Whatever the API can do to a stream, by name."""
    operations: list[tuple[str, dict[str, Any]]] = []
    for name in stream_names(topology):
        consumer = {"stream_name": name, "config": {"name": "x", "ack_policy": "none"}}
        operations += [
            (f"STREAM.INFO.{name}", {}),
            (f"STREAM.MSG.GET.{name}", {"seq": 1}),
            (f"STREAM.MSG.DELETE.{name}", {"seq": 1}),
            (f"DIRECT.GET.{name}", {"seq": 1}),
            (f"CONSUMER.CREATE.{name}.x", consumer),
            (f"CONSUMER.CREATE.{name}", consumer),
            (f"CONSUMER.DURABLE.CREATE.{name}.x", consumer),
            (f"CONSUMER.NAMES.{name}", {}),
            (f"CONSUMER.DELETE.{name}.x", {}),
            (f"STREAM.SNAPSHOT.{name}", {"deliver_subject": "_INBOX_x.y"}),
            (f"STREAM.UPDATE.{name}", {"name": name, "republish": {"src": ">", "dest": "stolen.>"}}),
            (f"STREAM.PURGE.{name}", {}),
            (f"STREAM.DELETE.{name}", {}),
        ]
    return operations


@pytest.mark.parametrize("role", ROLES)
async def test_no_user_of_a_job_reaches_another_job(jobs: Jobs, role: str) -> None:
    other, master = jobs.other, jobs.their_administrator
    for subject in (other.task_subject("q"), other.trajectory_subject("solver"), other.ledger_subject):
        await publish(master, subject, b"secret", message_id=subject, deadline_s=60.0)
    for bucket in other.buckets:
        await KeyValue(master, bucket).put("key", b"secret", deadline_s=60.0)
    before = await states(master, other)
    heard: list[str] = []

    async def hear(message: Msg) -> None:
        heard.append(message.subject)

    def touched(by: Bus, deadline_s: float) -> list[Attempt]:
        mirror = {"name": f"{jobs.ours.tasks.name}-2", "mirror": {"name": other.ledger.name}}
        operations = [
            ("STREAM.NAMES", {}),
            ("STREAM.LIST", {}),
            ("INFO", {}),
            (f"STREAM.CREATE.{mirror['name']}", mirror),
            *_stream_operations(other),
        ]
        return [
            *(partial(api_call, by, name, body, deadline_s=deadline_s) for name, body in operations),
            *(partial(KeyValue(by, bucket).get, "key", deadline_s=deadline_s) for bucket in other.buckets),
            *(partial(KeyValue(by, bucket).put, "key", b"mine", deadline_s=deadline_s) for bucket in other.buckets),
            *(
                partial(publish, by, subject, b"mine", message_id="mine", deadline_s=deadline_s)
                for subject in (other.task_subject("q"), other.trajectory_subject("solver"), other.ledger_subject)
            ),
        ]

    async with await jobs.dial(role) as bus:
        await refused(touched, to=bus)
        assert await states(master, other) == before
        inboxes = [f"{settings_of(jobs.server, theirs, other, jobs.folder).inbox_prefix}.>" for theirs in ROLES]
        for subject in (">", "*.>", "_INBOX.>", "_INBOX_operator.>", "$KV.>", "$SYS.>", other.all_batches, *inboxes):
            await bus.subscribe(subject, cb=hear)
        await bus.send(other.batch_subject("solver"), b"a forged question")
        # The server takes and answers in order: what it had for this user has come before this.
        await api_call(bus, f"STREAM.INFO.{jobs.ours.weights.stream}", deadline_s=60.0)
        for subject in (other.batch_subject("solver"), *(inbox.replace(">", "x") for inbox in inboxes)):
            await master.send(subject, b"secret")
        await KeyValue(master, other.members).put("key", b"secret", deadline_s=60.0)
        await api_call(bus, f"STREAM.INFO.{jobs.ours.weights.stream}", deadline_s=60.0)
        assert heard == []


async def test_a_trainer_takes_no_tasks_and_keeps_no_books(jobs: Jobs) -> None:
    ours = jobs.ours
    taking = {"name": "rollout", "durable_name": "rollout", "ack_policy": "explicit"}

    def attempts(by: Bus, deadline_s: float) -> list[Attempt]:
        operations: list[tuple[str, dict[str, Any]]] = [
            (
                f"CONSUMER.CREATE.{ours.tasks.name}.rollout",
                {"stream_name": ours.tasks.name, "config": taking},
            ),
            (f"CONSUMER.INFO.{ours.tasks.name}.rollout", {}),
            (f"STREAM.MSG.GET.{ours.tasks.name}", {"seq": 1}),
            (f"STREAM.MSG.GET.{ours.ledger.name}", {"seq": 1}),
            (f"STREAM.PURGE.{ours.trajectories.name}", {}),
            (
                f"CONSUMER.CREATE.{ours.trajectories.name}.x",
                {"stream_name": ours.trajectories.name, "config": {"name": "x", "ack_policy": "none"}},
            ),
            *((f"STREAM.DELETE.{name}", {}) for name in stream_names(ours)),
        ]
        return [
            lambda: publish(by, ours.task_subject("q"), b"mine", message_id="t", deadline_s=deadline_s),
            lambda: publish(by, ours.trajectory_subject("solver"), b"mine", message_id="t", deadline_s=deadline_s),
            lambda: publish(by, ours.ledger_subject, b"mine", message_id="l", deadline_s=deadline_s),
            lambda: KeyValue(by, ours.balance).put("solver.report", b"mine", deadline_s=deadline_s),
            lambda: KeyValue(by, ours.quarantine).put("task", b"mine", deadline_s=deadline_s),
            *(partial(api_call, by, name, body, deadline_s=deadline_s) for name, body in operations),
        ]

    async with await jobs.dial("trainer") as trainer:
        await refused_alone(attempts, to=trainer, administrator=jobs.administrator)


async def test_a_trainer_answers_no_trainer(jobs: Jobs) -> None:
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    async with await jobs.dial("trainer") as trainer, await jobs.dial("trainer") as another:
        await trainer.subscribe(jobs.ours.all_batches, cb=hear)
        await api_call(trainer, f"STREAM.INFO.{jobs.ours.tasks.name}", deadline_s=60.0)
        await another.send(jobs.ours.batch_subject("solver"), b"another's question")
        await api_call(another, f"STREAM.INFO.{jobs.ours.tasks.name}", deadline_s=60.0)
        await api_call(trainer, f"STREAM.INFO.{jobs.ours.tasks.name}", deadline_s=60.0)
    assert heard == []


async def test_a_dataflow_makes_no_streams_and_no_weights(jobs: Jobs) -> None:
    ours, copy = jobs.ours, jobs.ours.balance.config()
    mirror = {"name": f"{ours.tasks.name}-2", "mirror": {"name": ours.ledger.name}}

    def attempts(by: Bus, deadline_s: float) -> list[Attempt]:
        operations: list[tuple[str, dict[str, Any]]] = [
            (f"STREAM.CREATE.{mirror['name']}", mirror),
            (f"STREAM.UPDATE.{copy['name']}", copy | {"sources": [{"name": ours.ledger.name}]}),
            (f"STREAM.PURGE.{ours.tasks.name}", {}),
            *((f"STREAM.DELETE.{name}", {}) for name in stream_names(ours)),
        ]
        return [
            lambda: KeyValue(by, ours.weights).put("solver", b"mine", deadline_s=deadline_s),
            lambda: publish(by, ours.trajectory_subject("solver"), b"mine", message_id="t", deadline_s=deadline_s),
            *(partial(api_call, by, name, body, deadline_s=deadline_s) for name, body in operations),
        ]

    async with await jobs.dial("dataflow") as dataflow:
        await refused_alone(attempts, to=dataflow, administrator=jobs.administrator)


async def test_the_operator_follows_and_deletes_and_writes_nothing(jobs: Jobs) -> None:
    ours = jobs.ours

    def attempts(by: Bus, deadline_s: float) -> list[Attempt]:
        return [
            lambda: publish(by, ours.task_subject("q"), b"mine", message_id="t", deadline_s=deadline_s),
            lambda: publish(by, ours.ledger_subject, b"mine", message_id="l", deadline_s=deadline_s),
            lambda: KeyValue(by, ours.weights).put("solver", b"mine", deadline_s=deadline_s),
            lambda: api_call(by, f"STREAM.PURGE.{ours.ledger.name}", deadline_s=deadline_s),
        ]

    before = violations(jobs.server)
    async with operator_bus(jobs.server, ours) as operator:
        await KeyValue(jobs.administrator, ours.balance).put("k", b"1", deadline_s=60.0)
        async with KvWatch(KeyValue(operator, ours.balance)) as watch:
            await watch.next(deadline_s=60.0)
        assert (await KeyValue(operator, ours.balance).get("k", deadline_s=60.0)).value == b"1"
        assert violations(jobs.server) == before
        await refused_alone(attempts, to=operator, administrator=jobs.administrator)
        for name in stream_names(ours):
            assert await delete_stream(operator, name, deadline_s=60.0)


@pytest.mark.parametrize("role", ROLES)
async def test_the_operator_alone_says_how_many_replicas_are_wanted(jobs: Jobs, role: str) -> None:
    said, forged = FleetNote(wanted={"home": 3}), FleetNote(wanted={"home": 1000})
    present = jobs.ours.balance.config()

    def attempts(by: Bus, deadline_s: float) -> list[Attempt]:
        forging = present | {"metadata": {"trimtab.fleet": '{"wanted":{"home":1000}}'}}
        return [
            lambda: write_fleet_note(by, jobs.ours, forged, deadline_s=deadline_s),
            lambda: api_call(by, f"STREAM.UPDATE.{present['name']}", forging, deadline_s=deadline_s),
        ]

    before = violations(jobs.server)
    async with operator_bus(jobs.server, jobs.ours) as operator, await jobs.dial(role) as pod:
        await write_fleet_note(operator, jobs.ours, said, deadline_s=60.0)
        assert await read_fleet_note(pod, jobs.ours, deadline_s=60.0) == said
        assert violations(jobs.server) == before
        await refused(attempts, to=pod)
        assert await read_fleet_note(operator, jobs.ours, deadline_s=60.0) == said


@pytest.mark.slow
async def test_expired_credentials_are_refused_and_renewed_ones_let_in(jobs: Jobs) -> None:
    settings = settings_of(jobs.server, "rollout", jobs.ours, jobs.folder, window_s=6)
    expires_at = jobs.server.mint(window_s=6).job_user("rollout", jobs.ours, job_uid="any").expires_at
    file = settings.credentials_file
    assert file is not None
    async with await Bus.connect(settings, name="worker") as bus:
        # The server ends an open connection, too. It counts in seconds: in the last one it may still let somebody in.
        await eventually(lambda: bus.epoch > 0 and time.time() > expires_at + 2, timeout_s=30.0)
        await eventually(lambda: bus.state is BusState.RECONNECTING, timeout_s=30.0)
        with pytest.raises(BusUnauthenticated):
            await Bus.connect(settings, name="another")
        renewed = settings_of(jobs.server, "rollout", jobs.ours, jobs.folder)
        assert renewed.credentials_file == file
        await bus.wait_connected(deadline_s=60.0)
        await api_call(bus, f"STREAM.INFO.{jobs.ours.tasks.name}", deadline_s=60.0)


async def test_a_jobs_end_cuts_its_connections_and_a_namesake_is_another(jobs: Jobs) -> None:
    async with await jobs.dial("rollout") as ours, AsyncExitStack() as stack:
        theirs_settings = settings_of(jobs.server, "rollout", jobs.other, jobs.folder)
        theirs = await stack.enter_async_context(await Bus.connect(theirs_settings, name="other"))
        await forgotten(jobs.server, jobs.ours)
        await eventually(lambda: ours.state is BusState.RECONNECTING, timeout_s=30.0)
        with pytest.raises(BusUnauthenticated):
            await jobs.dial("trainer")
        # Once more is no error, and nothing to others.
        await forgotten(jobs.server, jobs.ours)
        await api_call(theirs, f"STREAM.INFO.{jobs.other.tasks.name}", deadline_s=60.0)
        # A new job of the same name has accounts of its own, which the old users do not belong to.
        mint = jobs.server.mint()
        async with registrars_bus(jobs.server) as registrar:
            for token in mint.job_accounts(jobs.ours, job_uid="another uid"):
                await register(registrar, token, deadline_s=60.0)
        with pytest.raises(BusUnauthenticated):
            await jobs.dial("rollout")


async def test_accounts_outlive_a_restart_of_the_server(tmp_path: Path) -> None:
    topology = new_job(NAMESPACE)
    with EmbeddedNatsWithAccounts(tmp_path / "nats") as server:
        await declared_by_the_operator(server, topology)
        async with await Bus.connect(settings_of(server, "rollout", topology, tmp_path), name="rollout") as bus:
            await publish(bus, topology.trajectory_subject("solver"), b"t", message_id="t", deadline_s=60.0)
            server.stop()
            server.start()
            stored = await publish(bus, topology.trajectory_subject("solver"), b"t", message_id="u", deadline_s=60.0)
            assert stored.sequence == 2


async def test_a_job_is_held_to_the_limits_of_its_accounts(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> None:
    topology = new_job(NAMESPACE)
    limits = AccountLimits(storage_bytes=256 << 20, connections=1, streams=9, consumers=8)
    await registered(nats, topology, mint=nats.mint(limits=limits))
    async with operator_bus(nats, topology) as operator:
        await declare_job(operator, topology, deadline_s=60.0)
    settings = settings_of(nats, "rollout", topology, tmp_path)
    async with await Bus.connect(settings, name="first") as bus:
        # The server says why and closes: its last words may be lost with the connection.
        with pytest.raises(BusUnavailable, match=r"maximum account active connections|reset by peer"):
            await Bus.connect(settings.model_copy(update={"connect_timeout_s": 1.0}), name="second")

        async def fill() -> None:
            for number in range(40):
                subject = topology.trajectory_subject("solver")
                await publish(bus, subject, b"x" * (7 << 20), message_id=str(number), deadline_s=60.0)

        with pytest.raises(StreamFull):
            await fill()
    async with administrator_of(nats, topology) as administrator:
        with pytest.raises(BusRefused, match="maximum number of streams"):
            await api_call(administrator, "STREAM.CREATE.x", {"name": "x", "subjects": ["x"]}, deadline_s=60.0)


async def test_names_of_any_length_fit(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> None:
    topology = JobTopology("n" * 63, "j" * 63)
    await declared_by_the_operator(nats, topology)
    for role in ROLES:
        async with await Bus.connect(settings_of(nats, role, topology, tmp_path), name=role) as bus:
            if role == "tracking":
                await api_call(bus, f"STREAM.INFO.{topology.weights.stream}", deadline_s=60.0)
            else:
                await declare_job(bus, topology, deadline_s=60.0)
