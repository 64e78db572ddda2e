"""NATS checks the subject of a request and never where its answer goes, and JetStream answers in its own name. No role
of a job can make the server write for it: into another job, into its own job's books, or to JetStream itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from tests.support.fabric.account_users import (
    administrator_of,
    declared_by_the_operator,
    new_job,
    settings_of,
    states,
    stream_names,
)
from tests.support.polling import eventually
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.names import Headers
from trimtab.fabric.bus.permissions import RIGHTS_OF
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.topology import BucketSpec, JobTopology

ROLES = tuple(RIGHTS_OF)
# The pod of trackers writes nothing on the bus.
WRITERS = tuple(role for role in ROLES if role != "tracking")
D = 60.0


@dataclass(frozen=True)
class Site:
    server: EmbeddedNatsWithAccounts
    ours: JobTopology
    other: JobTopology
    our_administrator: Bus
    their_administrator: Bus
    folder: Path

    async def dial(self, role: str) -> Bus:
        return await Bus.connect(settings_of(self.server, role, self.ours, self.folder), name=role)

    async def settled(self, bus: Bus) -> None:
        """The server takes and answers in order: what was sent before has been dealt with, and what JetStream does
        with it is done once it has answered the administrators after that."""
        await api_call(bus, f"STREAM.INFO.{self.ours.weights.stream}", deadline_s=D)
        for administrator in (self.our_administrator, self.their_administrator):
            await api_call(administrator, "STREAM.NAMES", {}, deadline_s=D)


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def site(nats: EmbeddedNatsWithAccounts, tmp_path: Path) -> AsyncIterator[Site]:
    ours, other = new_job("default"), new_job("default")
    await declared_by_the_operator(nats, ours, other)
    async with administrator_of(nats, ours) as mine, administrator_of(nats, other) as theirs:
        for administrator, topology in ((mine, ours), (theirs, other)):
            for subject in (topology.task_subject("q"), topology.trajectory_subject("p"), topology.ledger_subject):
                await publish(administrator, subject, b"precious", message_id=subject, deadline_s=D)
            for bucket in topology.buckets:
                await KeyValue(administrator, bucket).put("key", b"precious", deadline_s=D)
        yield Site(nats, ours, other, mine, theirs, tmp_path)


def _writable(role: str, topology: JobTopology) -> BucketSpec:
    """Whose content the role chooses."""
    return {"rollout": topology.members, "trainer": topology.weights, "dataflow": topology.balance}[role]


def _questions(role: str, topology: JobTopology) -> list[tuple[str, bytes]]:
    """What the role may ask, by which the answer would be written elsewhere."""
    bucket = _writable(role, topology)
    return [
        (f"$JS.API.DIRECT.GET.{bucket.stream}.$KV.{bucket.name}.forged", b""),
        (f"$JS.API.DIRECT.GET.{bucket.stream}.$KV.{bucket.name}.configuration", b""),
        (f"$JS.API.STREAM.INFO.{topology.ledger.name}", b""),
        (f"$KV.{bucket.name}.another", b"an acknowledgement comes"),
    ]


def _elsewhere(site: Site) -> list[str]:
    """Where an answer must not arrive."""
    api = [
        f"$JS.API.STREAM.{operation}.{name}"
        for operation in ("PURGE", "DELETE")
        for topology in (site.other, site.ours)
        for name in stream_names(topology)
    ]
    books = [site.other.ledger_subject, site.ours.ledger_subject, site.other.trajectory_subject("p")]
    return [*books, f"$KV.{site.other.weights.name}.key", "$JS.API.STREAM.CREATE.made", *api]


@pytest.mark.parametrize("role", WRITERS)
async def test_no_answer_is_written_elsewhere(site: Site, role: str) -> None:
    bucket = _writable(role, site.ours)
    theirs = await states(site.their_administrator, site.other)
    async with await site.dial(role) as bus:
        await KeyValue(bus, bucket).put("forged", b"a record that none of them wrote", deadline_s=D)
        made = {"name": "made", "subjects": ["made"], "storage": "memory"}
        await KeyValue(bus, bucket).put("configuration", json.dumps(made).encode(), deadline_s=D)
        ours = await states(site.our_administrator, site.ours)
        for reply in _elsewhere(site):
            for subject, payload in _questions(role, site.ours):
                await bus.send(subject, payload, reply=reply)
        await site.settled(bus)
    assert await states(site.their_administrator, site.other) == theirs
    for administrator in (site.our_administrator, site.their_administrator):
        names = (await api_call(administrator, "STREAM.NAMES", {}, deadline_s=D))["streams"]
        assert "made" not in names
    now = await states(site.our_administrator, site.ours)
    del ours[bucket.stream], now[bucket.stream]  # it writes there itself
    if role == "dataflow":
        # What it may write to and purge by itself.
        for own in (site.ours.ledger.name, site.ours.trajectories.name):
            del ours[own], now[own]
    assert now == ours


@pytest.mark.parametrize("role", WRITERS)
async def test_no_answer_makes_a_consumer_that_reads_for_it(site: Site, role: str) -> None:
    """The answer's content is of the asker's choice: here a consumer that would deliver to it."""
    bucket = _writable(role, site.ours)
    heard: list[bytes] = []
    settings = settings_of(site.server, role, site.ours, site.folder)

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    async with await site.dial(role) as bus:
        await bus.subscribe(f"{settings.inbox_prefix}.stolen", cb=hear)
        for topology in (site.other, site.ours):
            for name in (topology.ledger.name, topology.tasks.name, topology.quarantine.stream):
                deliver = {"deliver_subject": f"{settings.inbox_prefix}.stolen", "ack_policy": "none"}
                body = json.dumps({"stream_name": name, "config": deliver}).encode()
                await KeyValue(bus, bucket).put("thief", body, deadline_s=D)
                question = f"$JS.API.DIRECT.GET.{bucket.stream}.$KV.{bucket.name}.thief"
                await bus.send(question, b"", reply=f"$JS.API.CONSUMER.CREATE.{name}")
        await site.settled(bus)
    assert heard == []


_PURGES: dict[str, Headers] = {
    "rollup of everything": {"Nats-Rollup": "all"},
    "rollup of a subject": {"Nats-Rollup": "sub"},
}


@pytest.mark.parametrize("headers", _PURGES.values(), ids=_PURGES)
@pytest.mark.parametrize("role", ROLES)
async def test_no_header_purges(site: Site, role: str, headers: Headers) -> None:
    """A message that is rolled up replaces all that was before it."""
    before = await states(site.our_administrator, site.ours)
    subjects = [
        *(f"$KV.{bucket.name}.{key}" for bucket in site.ours.buckets for key in ("key", "new")),
        site.ours.trajectory_subject("p"),
        site.ours.task_subject("q"),
        site.ours.ledger_subject,
    ]
    async with await site.dial(role) as bus:
        for subject in subjects:
            await bus.send(subject, b"all that is left", headers=headers)
        await site.settled(bus)
    assert await states(site.our_administrator, site.ours) == before


async def test_an_administrator_of_a_job_reads_what_is_there(site: Site) -> None:
    """So that what the others must not do is possible at all."""
    heard: list[bytes] = []

    async def hear(message: Msg) -> None:
        heard.append(message.data)

    bus = site.our_administrator
    await bus.subscribe("stolen", cb=hear)
    await bus.send(f"$JS.API.DIRECT.GET.{site.ours.trajectories.name}", b'{"seq": 1}', reply="stolen")
    await eventually(lambda: b"precious" in heard, timeout_s=30.0)
