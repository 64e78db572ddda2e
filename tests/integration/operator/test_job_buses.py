"""The operator's connections to jobs on a real server with accounts: each job its own, told to the server again when it
has forgotten, and gone with the job.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.polling import eventually
from trimtab.embedded.child import Command
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import CredentialsFile, MintedCredentials
from trimtab.fabric.bus.errors import BusUnauthenticated, BusUnavailable
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.permissions import claims_rights
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.keys import KeyKind, KeyPair
from trimtab.fabric.bus.users.limits import AccountLimits
from trimtab.fabric.bus.users.mint import AccountMint
from trimtab.fabric.bus.users.registry import ClaimsRefused, register
from trimtab.fabric.bus.users.tokens import credentials_text, signed, system_account_token, user_token
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.kube.resources import Key
from trimtab.operator.reconcile.job_buses import AccountBuses, JobIdentity, NoRoom, SharedBus
from trimtab.operator.reconcile.job_watches import JobWatches

D = 60.0


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedNatsWithAccounts]:
    with EmbeddedNatsWithAccounts(tmp_path_factory.mktemp("nats")) as server:
        yield server


@pytest.fixture
async def buses(nats: EmbeddedNatsWithAccounts) -> AsyncIterator[AccountBuses]:
    made = AccountBuses(nats.address, nats.mint(), system=None)
    yield made
    await made.close()


def _new_job() -> JobIdentity:
    return JobIdentity(Key("team", f"j{uuid.uuid4().hex[:10]}"), uuid.uuid4().hex)


async def _dialled(nats: EmbeddedNatsWithAccounts, job: JobIdentity, role: str = "rollout") -> Bus:
    user = nats.mint().job_user(role, job.topology, job_uid=job.uid)
    settings = nats.address.model_copy(
        update={"inbox_prefix": user.inbox_prefix, "makes_streams": False, "connect_timeout_s": 2.0}
    )
    return await Bus.connect(settings, name=role, credentials=MintedCredentials(lambda: user.credentials))


async def test_each_job_has_its_own_and_it_is_gone_with_the_job(
    nats: EmbeddedNatsWithAccounts, buses: AccountBuses
) -> None:
    first, second = _new_job(), _new_job()
    with pytest.raises(BusUnauthenticated):
        await _dialled(nats, first)
    for job in (first, second):
        await declare_job(await buses.bus(job), job.topology, deadline_s=D)
    assert await buses.bus(first) is await buses.bus(first)
    assert await buses.bus(first) is not await buses.bus(second)
    async with await _dialled(nats, first) as pod:
        await declare_job(pod, first.topology, deadline_s=D)
        await buses.release(first)
        # The account stays while the job does.
        await declare_job(pod, first.topology, deadline_s=D)
        await buses.forget(first)
        await eventually(lambda: pod.epoch > 0, timeout_s=30.0)
    with pytest.raises(BusUnauthenticated):
        await _dialled(nats, first)
    async with await _dialled(nats, second) as pod:
        await declare_job(pod, second.topology, deadline_s=D)


async def test_what_is_erased_has_left_nothing(nats: EmbeddedNatsWithAccounts, buses: AccountBuses) -> None:
    watches, job = JobWatches(buses, interval_s=0.1), _new_job()
    running = asyncio.create_task(watches.run())
    try:
        watches.admit(job)
        watches.follow(job, policies=("p",), window=1, task_lease_s=60.0)
        await eventually(lambda: watches.count == 1, timeout_s=30.0)
        async with await _dialled(nats, job) as pod:
            await declare_job(pod, job.topology, deadline_s=D)
        assert list((nats.data_folder / "jetstream").rglob(job.topology.ledger.name))
        await watches.erase(job)
        # Erasing again, after a crash, is no error.
        await watches.erase(job)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert not list((nats.data_folder / "jetstream").rglob(job.topology.ledger.name))
    stored = {file.stem for file in (nats.data_folder / "accounts").rglob("*.jwt")}
    assert stored.isdisjoint(nats.mint().account_keys(job_uid=job.uid).values())


async def test_a_job_that_is_stopped_and_followed_again_at_once_is_heard(
    nats: EmbeddedNatsWithAccounts, buses: AccountBuses
) -> None:
    """The connection of before is closed while the new one is dialled."""
    heard: list[Key] = []
    watches, job = JobWatches(buses, interval_s=0.1), _new_job()
    watches.listen(heard.append)
    running = asyncio.create_task(watches.run())
    wanted = {"policies": ("p",), "window": 1, "task_lease_s": 60.0}
    try:
        for _ in range(3):
            watches.follow(job, **wanted)  # type: ignore[arg-type]
            await eventually(lambda: watches.count == 1, timeout_s=30.0)
            watches.stop(job.key)
        watches.follow(job, **wanted)  # type: ignore[arg-type]
        await eventually(lambda: watches.count == 1, timeout_s=30.0)
        user = nats.mint().administrator(job_uid=job.uid)
        credentials = MintedCredentials(lambda: user.credentials)
        async with await Bus.connect(nats.address, name="test", credentials=credentials) as bus:
            await declare_job(bus, job.topology, deadline_s=D)
            await KeyValue(bus, job.topology.quarantine).put("t1", b"broken", deadline_s=D)
            await eventually(lambda: watches.snapshot(job.key).report.quarantined_tasks == 1, timeout_s=60.0)
        assert set(heard) == {job.key}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_results_of_a_job_that_nobody_follows_are_read_and_its_connection_is_given_up(
    nats: EmbeddedNatsWithAccounts, buses: AccountBuses
) -> None:
    watches, job = JobWatches(buses, interval_s=60.0), _new_job()
    bus = await buses.bus(job)
    assert await watches.results(job, ["p"]) == [], "it has no streams yet"
    own = await buses.bus(job)
    assert own is not bus
    await declare_job(own, job.topology, deadline_s=D)
    user = nats.mint().administrator(job_uid=job.uid)
    credentials = MintedCredentials(lambda: user.credentials)
    async with await Bus.connect(nats.address, name="test", credentials=credentials) as writer:
        balance = KeyValue(writer, job.topology.balance)
        for version in (2, 4, 6):
            key = JobTopology.evaluation_key("p", "held-out", version=version)
            await balance.put(key, encode(_result(job, version)), deadline_s=D)
        await balance.put("p.evaluation.held-out.8", b"broken", deadline_s=D)
    # Two jobs that begin at this one: the first to be done does not hang up on the other.
    found = await asyncio.gather(watches.results(job, ["p"]), watches.results(job, ["p", "q"]))
    assert [sorted(one.version for one in results) for results in found] == [[2, 4, 6], [2, 4, 6]]
    assert await buses.bus(job) is not own
    assert await watches.results(job, ["q"]) == []


def _result(job: JobIdentity, version: int) -> EvaluationResult:
    return EvaluationResult(
        job=job.key.name, policy="p", benchmark="held-out", version=version, score=0.5, episodes=1, at=1.0
    )


@pytest.mark.slow
async def test_a_server_that_has_lost_its_accounts_is_told_again(tmp_path: Path) -> None:
    job = _new_job()
    async with AsyncExitStack() as stack:
        with EmbeddedNatsWithAccounts(tmp_path / "nats", supervise=False) as server:
            buses = AccountBuses(server.address, server.mint(), system=None)
            stack.push_async_callback(buses.close)
            await declare_job(await buses.bus(job), job.topology, deadline_s=D)
            server.stop()
            shutil.rmtree(tmp_path / "nats/accounts")
            server.start()
            system = await _dialled_as_registrar(server)
            await system.close()
            await eventually(lambda: _is_back(buses, job), timeout_s=60.0)
            await (await _dialled(server, job)).close()


async def _dialled_as_registrar(server: EmbeddedNatsWithAccounts) -> Bus:
    user = server.mint().registrar()
    settings = server.address.model_copy(update={"inbox_prefix": user.inbox_prefix})
    return await Bus.connect(settings, name="registrar", credentials=MintedCredentials(lambda: user.credentials))


async def _is_back(buses: AccountBuses, job: JobIdentity) -> bool:
    try:
        bus = await buses.bus(job)
        await bus.wait_connected(deadline_s=1.0)
        await api_call(bus, "INFO", deadline_s=5.0)
    except BusUnavailable:
        return False
    return True


async def test_a_job_for_which_there_is_no_room_is_told_and_costs_the_others_nothing(
    nats: EmbeddedNatsWithAccounts,
) -> None:
    greedy = AccountBuses(nats.address, nats.mint(limits=AccountLimits(storage_bytes=1 << 51)), system=None)
    modest = AccountBuses(nats.address, nats.mint(), system=None)
    job = _new_job()
    try:
        with pytest.raises(NoRoom, match=r"lower nats_accounts\.limits\.storage_bytes"):
            await greedy.bus(job)
        await declare_job(await modest.bus(_new_job()), _new_job().topology, deadline_s=D)
        # It can be deleted.
        await JobWatches(greedy, interval_s=1.0).erase(job)
    finally:
        await greedy.close()
        await modest.close()


class _NatsOfOthers(EmbeddedNatsWithAccounts):
    """As an administrator sets it up: the operator's own key is kept elsewhere, and Trimtab has a signing key of it and
    a user of the system account."""

    signing, system = KeyPair.generate(KeyKind.OPERATOR), KeyPair.generate(KeyKind.ACCOUNT)

    def command(self) -> Command:
        command, operator = super().command(), KeyPair.generate(KeyKind.OPERATOR)
        body = {
            "type": "operator",
            "version": 2,
            "system_account": self.system.public,
            "signing_keys": [self.signing.public],
        }
        now = int(time.time())
        statements = {
            "operator": signed(operator, subject=operator.public, name="others", body=body, issued_at=now),
            "system_account": self.system.public,
            "resolver_preload": {
                self.system.public: system_account_token(self.system.public, signed_by=operator, issued_at=now)
            },
        }
        lines = [f"{name}: {json.dumps(value)}" for name, value in statements.items()]
        (self.data_folder / "trust.conf").write_text("\n".join(lines))
        return command


async def test_a_server_of_others_is_told_with_a_signing_key_and_its_system_user(tmp_path: Path) -> None:
    job, user = _new_job(), KeyPair.generate(KeyKind.USER)
    with _NatsOfOthers(tmp_path / "nats") as server:
        rights = claims_rights(inbox_prefix="_INBOX_system")
        issued_at = int(time.time())
        token = user_token(
            user.public,
            signed_by=server.system,
            name="trimtab",
            rights=rights,
            issued_at=issued_at,
            expires_at=issued_at + 600,
        )
        file = tmp_path / "system.creds"
        file.write_text(credentials_text(token, user))
        mint = AccountMint(server.signing.reveal_seed(), clock=time.time)
        nats = server.address.model_copy(update={"inbox_prefix": "_INBOX_system"})
        buses = AccountBuses(nats, mint, system=CredentialsFile(file))
        try:
            await declare_job(await buses.bus(job), job.topology, deadline_s=D)
            await buses.forget(job)
            with pytest.raises(BusUnauthenticated):
                await Bus.connect(
                    nats.model_copy(update={"inbox_prefix": "_INBOX"}),
                    name="gone",
                    credentials=MintedCredentials(lambda: mint.administrator(job_uid=job.uid).credentials),
                )
        finally:
            await buses.close()


async def test_a_server_without_accounts_is_refused_by_name(nats_settings: NatsSettings) -> None:
    """It lets in a user with a password, and none that is minted."""
    mint = AccountMint(KeyPair.generate(KeyKind.OPERATOR).reveal_seed(), clock=time.time)
    buses = AccountBuses(nats_settings.model_copy(update={"user": None, "password": None}), mint, system=None)
    with pytest.raises(BusUnauthenticated, match="operator mode"):
        await buses.ready()
    await buses.close()


async def test_a_server_that_keeps_no_accounts_says_so(nats_settings: NatsSettings) -> None:
    async with await Bus.connect(nats_settings, name="test") as bus:
        with pytest.raises(ClaimsRefused, match="resolver of type full"):
            await register(bus, "token", deadline_s=5.0)


async def test_one_connection_serves_all_jobs_where_all_pods_trust_one_another(nats_settings: NatsSettings) -> None:
    shared = SharedBus(nats_settings)
    try:
        first, second = _new_job(), _new_job()
        await shared.admit(first)
        assert await shared.bus(first) is await shared.bus(second)
        await shared.forget(first)
        await api_call(await shared.bus(second), "INFO", deadline_s=D)
    finally:
        await shared.close()
