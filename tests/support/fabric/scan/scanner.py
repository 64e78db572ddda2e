"""Makes the attempts from one connection, with two jobs and listeners in all their accounts, and says what worked."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from nats.aio.msg import Msg

from tests.support.fabric.account_users import (
    administrator_of,
    declared_by_the_operator,
    stream_names,
    uid_of,
)
from tests.support.fabric.scan.attempts import Attempt, answers_elsewhere, on_accounts, on_batches, on_streams, question
from tests.support.fabric.scan.targets import BATCHES, STAGE, targets_of
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusNotFound
from trimtab.fabric.bus.inbox import status_of
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.permissions import rights_of
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_consumer
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.accounts import JOB, ROLE_ACCOUNTS

_D = 60.0
_PATIENCE_S = 2.0
_NO_RESPONDERS = "503"
# What the server says in an account by itself.
_SERVERS_OWN = re.compile(r"\$JS\.EVENT\..*|_R_\..*|\$JSC\..*|\$SYS\..*|_GR_\..*")


@dataclass
class Heard:
    """By account and subject, what came there."""

    messages: list[tuple[str, str]] = field(default_factory=list)
    noting: bool = False

    async def listen(self, bus: Bus, account: str) -> None:
        async def note(message: Msg) -> None:
            if self.noting and not _SERVERS_OWN.fullmatch(message.subject):
                self.messages.append((account, message.subject))

        await bus.subscribe(">", cb=note)


@dataclass(frozen=True)
class Site:
    server: EmbeddedNatsWithAccounts
    ours: JobTopology
    other: JobTopology
    our_keeper: Bus
    their_keeper: Bus

    @classmethod
    @asynccontextmanager
    async def opened(cls, server: EmbeddedNatsWithAccounts, *, name: str) -> AsyncIterator[Site]:
        """Two jobs that have one message in everything, and workers' consumers."""
        ours, other = (JobTopology("scan", f"{name}-{one}", stages=(STAGE,)) for one in ("ours", "other"))
        await declared_by_the_operator(server, ours, other)
        async with administrator_of(server, ours) as mine, administrator_of(server, other) as theirs:
            for bus, topology in ((mine, ours), (theirs, other)):
                for target in targets_of(topology):
                    await publish(bus, target.subject, b"precious", message_id=target.name, deadline_s=_D)
                # Who asks a consumer that is not there for a message is answered as one who may not ask.
                for consumer in (topology.task_consumer(lease_s=_D), topology.stage_consumer(STAGE, lease_s=_D)):
                    await declare_consumer(bus, consumer, deadline_s=_D)
            yield cls(server, ours, other, mine, theirs)


async def scan(site: Site, role: str, *, alone: bool, account: str | None = None) -> frozenset[str]:
    """What works for the role. `alone`: as a user of the role's account without rights of its own to hold it, so that
    the account alone does; `account` is that of another."""
    async with AsyncExitStack() as stack:
        bus, inbox = await _dialled(site, role, account=(account or role) if alone else None, stack=stack)
        before = await _states(site)
        for topology in (site.ours, site.other):
            await _answering(site.server, topology, stack)
        others = site.server.mint().account_keys(job_uid=uid_of(site.other)).values()
        found = await tried(bus, inbox, _attempts(site, role), others=[key.encode() for key in others])
        found |= await _effects(site, role, before)
        found |= await _misled(site, role, bus, stack)
        found |= await _overheard(site, role, bus, inbox, stack)
        return frozenset(found)


async def _dialled(site: Site, role: str, *, account: str | None, stack: AsyncExitStack) -> tuple[Bus, str]:
    mint, uid = site.server.mint(), uid_of(site.ours)
    if account is None:
        user = mint.job_user(role, site.ours, job_uid=uid)
    else:
        user = mint.administrator(job_uid=uid, account=account)
    settings = site.server.address.model_copy(update={"inbox_prefix": user.inbox_prefix})
    credentials = MintedCredentials(lambda: user.credentials)
    bus = await stack.enter_async_context(await Bus.connect(settings, name=role, credentials=credentials))
    return bus, user.inbox_prefix


def _attempts(site: Site, role: str) -> list[Attempt]:
    mint = site.server.mint()
    accounts = [key for job in (site.ours, site.other) for key in mint.account_keys(job_uid=uid_of(job)).values()]
    theirs = mint.account_keys(job_uid=uid_of(site.other))[JOB]
    forged = json.dumps({"acc": theirs, "svc": theirs, "user": "administrator"})
    return [
        *on_streams(targets_of(site.ours)),
        # A dataflow may ask itself what it likes.
        *(on_batches(site.ours) if role != "dataflow" else ()),
        *on_streams(targets_of(site.other), owner="other job's "),
        *on_batches(site.other, owner="other job's "),
        *on_accounts(accounts, stream=site.ours.tasks.name),
        # A client's word on whose account it is from.
        *(
            Attempt("other job's stream by a forged origin", attempt.subject, attempt.payload, headers)
            for attempt in on_streams(targets_of(site.other))
            for headers in ({"Nats-Request-Info": forged},)
            if not attempt.stores
        ),
    ]


async def _answering(server: EmbeddedNatsWithAccounts, topology: JobTopology, stack: AsyncExitStack) -> None:
    """A dataflow that answers whoever asks."""
    dataflow = await stack.enter_async_context(administrator_of(server, topology, account="dataflow"))

    async def answer(message: Msg) -> None:
        if message.reply and not message.data.startswith(b"loud"):
            await dataflow.post(message.reply, b"a batch", deadline_s=_D)

    await dataflow.subscribe(topology.all_batches, cb=answer)
    await _settled(dataflow, topology)


async def tried(bus: Bus, inbox: str, attempts: Sequence[Attempt], *, others: Sequence[bytes]) -> set[str]:
    """Those that were answered by anything but the word that there is no responder."""
    worked: set[str] = set()

    places = {attempt.subject: attempt.means.partition(":")[0] for attempt in attempts if attempt.stores}

    async def answered(message: Msg) -> None:
        if message.subject in places:  # a message that was taken comes with its own subject
            worked.add(f"{places[message.subject]}: take")
            return
        attempt = attempts[int(message.subject.rpartition(".")[2])]
        if status_of(message) == _NO_RESPONDERS or (attempt.stores and b'"error"' in message.data):
            return
        if not attempt.of_its_own or any(key in message.data for key in others):
            worked.add(attempt.means)

    listening = await bus.subscribe(f"{inbox}.tried.*", cb=answered)
    for number, attempt in enumerate(attempts):
        reply = f"{inbox}.tried.{number}"
        await bus.send(attempt.subject, attempt.payload, reply=reply, headers=attempt.headers or None)
    await asyncio.sleep(_PATIENCE_S)
    await bus.unsubscribe(listening)
    return worked


async def _states(site: Site) -> dict[str, tuple[int, int] | None]:
    """Messages and last sequence of every stream of both jobs; and others, which there must not be."""
    found: dict[str, tuple[int, int] | None] = {}
    for bus, topology in ((site.our_keeper, site.ours), (site.their_keeper, site.other)):
        names = (await api_call(bus, "STREAM.NAMES", {}, deadline_s=_D))["streams"] or []
        for name in {*names, *stream_names(topology)}:
            state = None
            if name in names:
                said = (await api_call(bus, f"STREAM.INFO.{name}", deadline_s=_D))["state"]
                state = (said["messages"], said["last_seq"])
            found[name] = state
    return found


async def _effects(site: Site, role: str, before: dict[str, tuple[int, int] | None]) -> set[str]:
    """What is otherwise than before, beyond what the role writes and takes."""
    may = rights_of(role, site.ours, inbox_prefix="_INBOX_any").publish
    own = {target.stream: target for target in targets_of(site.ours)}
    expected = {
        stream
        for stream, target in own.items()
        if _covered(target.subject, may)
        or f"$JS.API.STREAM.PURGE.{stream}" in may
        or (target.name in ("TASKS", "STAGES") and any(subject.startswith("$JS.ACK.") for subject in may))
    }
    # A key that expires goes by itself.
    expiring = {bucket.stream for job in (site.ours, site.other) for bucket in job.buckets if bucket.ttl_s}
    after = await _states(site)
    changed = {name for name in after if after[name] != before.get(name)} - expected - expiring
    return {f"changed without a right: {name}" for name in changed}


async def _misled(site: Site, role: str, bus: Bus, stack: AsyncExitStack) -> set[str]:
    """Has the server answer to subjects of others, which are listened to in all the other accounts."""
    heard, mint = Heard(), site.server.mint()
    for owner, topology in (("own ", site.ours), ("other job's ", site.other)):
        for account in (JOB, *ROLE_ACCOUNTS):
            if topology is site.ours and account == role:
                continue  # its own, where it may say and hear what it likes
            listener = await stack.enter_async_context(administrator_of(site.server, topology, account=account))
            await heard.listen(listener, owner + account)
            await _settled(listener, topology)
    users = [mint.job_user(one, job, job_uid=uid_of(job)) for one in ROLE_ACCOUNTS for job in (site.ours, site.other)]
    inboxes = [user.inbox_prefix for user in users] + ["_INBOX", "_INBOX_operator"]
    may = rights_of(role, site.ours, inbox_prefix="_INBOX_any").publish
    before = await _states(site)
    questions = [question(right) for right in may if ".PURGE." not in right]
    await asyncio.sleep(_PATIENCE_S / 4)  # until answers to ourselves have come
    heard.noting = True
    for target in answers_elsewhere(targets_of(site.ours), targets_of(site.other), inboxes=inboxes):
        for subject, payload in questions:
            await bus.send(subject, payload, reply=target)
            await bus.send(subject, payload, reply=target, headers={"Nats-Trace-Dest": target})
    await asyncio.sleep(_PATIENCE_S)
    heard.noting = False
    found = {
        f"heard in the {account} account: {subject}"
        for account, subject in heard.messages
        if not (account in (f"own {JOB}", "own dataflow") and _covered(subject, may))
    }
    return found | await _effects(site, role, before)


async def _overheard(site: Site, role: str, bus: Bus, inbox: str, stack: AsyncExitStack) -> set[str]:
    """What the role hears of what others say and are told."""
    found: set[str] = set()

    async def note(message: Msg) -> None:
        if message.data.startswith(b"loud"):
            found.add(message.data.decode().partition(" ")[2])

    own = [f"$KV.{bucket.name}.>" for bucket in site.ours.buckets]
    theirs = [f"$KV.{bucket.name}.>" for bucket in site.other.buckets]
    for subject in (">", "*.>", "$KV.>", "$JS.>", "$SYS.>", "_INBOX.>", "trimtab.>", *own, *theirs):
        await bus.subscribe(subject, cb=note)
    for topology in (site.ours, site.other):
        await bus.subscribe(topology.all_batches, cb=note)
    await _settled(bus, site.ours)
    for owner, keeper, topology in (("", site.our_keeper, site.ours), ("other job's ", site.their_keeper, site.other)):
        for target in targets_of(topology):
            await keeper.send(target.subject, f"loud {owner}{target.name}: hear".encode())
        trainer = await stack.enter_async_context(administrator_of(site.server, topology, account="trainer"))
        if role != "trainer" or topology is site.other:
            await trainer.send(topology.batch_subject("scan"), f"loud {owner}{BATCHES}: answer".encode())
        await _settled(trainer, topology)
        await _settled(keeper, topology)
    await asyncio.sleep(_PATIENCE_S)
    return found


async def _settled(bus: Bus, topology: JobTopology) -> None:
    """The server has dealt with what this connection sent before: it answers in order, and every role may ask this."""
    with contextlib.suppress(BusNotFound):
        await api_call(bus, f"STREAM.INFO.{topology.weights.stream}", deadline_s=_D)


def _covered(subject: str, patterns: Sequence[str]) -> bool:
    return any(_matches(subject.split("."), pattern.split(".")) for pattern in patterns)


def _matches(tokens: Sequence[str], pattern: Sequence[str]) -> bool:
    for number, part in enumerate(pattern):
        if part == ">":
            return len(tokens) > number
        if number >= len(tokens) or part not in ("*", tokens[number]):
            return False
    return len(tokens) == len(pattern)
