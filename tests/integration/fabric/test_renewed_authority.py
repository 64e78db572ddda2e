"""An authority that is renewed reaches clients that run: NATS and object storage change their certificates under a Bus
and an ObjectStore, and neither is made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fabric.account_users import new_job, registered, uid_of
from tests.support.fabric.tls_servers import Certificates, TlsNats, TlsSeaweed, new_authority
from tests.support.polling import eventually
from trimtab.embedded.server import EmbeddedServer
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus, BusState
from trimtab.fabric.bus.errors import BusUnauthenticated
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.streams import declare_stream
from trimtab.fabric.bus.topology import StreamSpec
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreUnavailable
from trimtab.fabric.settings import NatsSettings
from trimtab.kube.certificates import CertificateAuthority

D = 60.0
QUICK = FullJitter(base_s=0.02, cap_s=0.2)
STREAM = StreamSpec(name="S", subjects=("s.>",))


@pytest.fixture
def first() -> CertificateAuthority:
    return new_authority()


@pytest.fixture
def second() -> CertificateAuthority:
    return new_authority()


@pytest.fixture
def certificates(tmp_path: Path, first: CertificateAuthority) -> Certificates:
    made = Certificates(folder=tmp_path)
    made.show(first)
    made.trust(first)
    return made


@pytest.fixture
def nats(tmp_path: Path, certificates: Certificates) -> Iterator[TlsNats]:
    with TlsNats(tmp_path / "nats", certificates=certificates) as server:
        yield server


@pytest.fixture
def store(tmp_path: Path, certificates: Certificates) -> Iterator[TlsSeaweed]:
    with TlsSeaweed(tmp_path / "seaweedfs", certificates=certificates) as server:
        yield server


@pytest.fixture
async def patient(nats: TlsNats, tmp_path: Path) -> NatsSettings:
    """Of a user in an account with streams."""
    topology = new_job("default")
    await registered(nats, topology)
    file = tmp_path / "test.creds"
    file.write_text(nats.mint().administrator(job_uid=uid_of(topology)).credentials)
    waiting = {"connect_timeout_s": D, "request_timeout_s": D}
    return nats.address.model_copy(update={"credentials_file": file, **waiting})


async def restarted(server: EmbeddedServer, certificates: Certificates, authority: CertificateAuthority) -> None:
    await asyncio.to_thread(server.kill)
    certificates.show(authority)
    await asyncio.to_thread(server.start)


async def test_a_bus_follows_its_server_to_another_authority_and_back(
    nats: TlsNats,
    patient: NatsSettings,
    certificates: Certificates,
    first: CertificateAuthority,
    second: CertificateAuthority,
) -> None:
    async with await Bus.connect(patient, name="test", backoff=QUICK) as bus:
        await declare_stream(bus, STREAM, deadline_s=D)
        # In the order of a careful rotation: clients trust both, the server changes, the old one is dropped.
        certificates.trust(first, second)
        await restarted(nats, certificates, second)
        assert (await publish(bus, "s.x", b"overlap", message_id="1", deadline_s=D)).sequence == 1
        certificates.trust(second)
        await restarted(nats, certificates, second)
        assert (await publish(bus, "s.x", b"renewed", message_id="2", deadline_s=D)).sequence == 2
        # In the other order: the server is away for whoever has not heard yet, and no longer.
        await restarted(nats, certificates, first)
        await eventually(lambda: "CERTIFICATE_VERIFY_FAILED" in bus._last_error, timeout_s=10)
        assert bus.state is BusState.RECONNECTING
        certificates.trust(first)
        assert (await publish(bus, "s.x", b"late", message_id="3", deadline_s=D)).sequence == 3
        assert bus.epoch == 3


async def test_a_bus_outlives_a_broken_file_of_authorities(
    nats: TlsNats, patient: NatsSettings, certificates: Certificates, first: CertificateAuthority
) -> None:
    async with await Bus.connect(patient, name="test", backoff=QUICK) as bus:
        for broken in (b"", b"no certificate", b"\xff\xfe"):
            certificates.trusted_file.write_bytes(broken)
            await restarted(nats, certificates, first)
            await eventually(lambda: "no valid PEM" in bus._last_error, timeout_s=10)
            certificates.trust(first)
            await bus.wait_connected(deadline_s=D)
            bus._last_error = ""
        certificates.trusted_file.unlink()
        await restarted(nats, certificates, first)
        await eventually(lambda: "cannot be read" in bus._last_error, timeout_s=10)
        certificates.trust(first)
        await bus.wait_connected(deadline_s=D)


async def test_a_new_bus_is_refused_by_neither_authority_s_certificate(
    nats: TlsNats,
    patient: NatsSettings,
    certificates: Certificates,
    first: CertificateAuthority,
    second: CertificateAuthority,
) -> None:
    await restarted(nats, certificates, new_authority())
    certificates.trust(first, second)
    with pytest.raises(BusUnauthenticated, match="CERTIFICATE_VERIFY_FAILED"):
        await Bus.connect(patient, name="test", backoff=QUICK)


@pytest.mark.slow
async def test_an_object_store_follows_its_server_to_another_authority_and_back(
    store: TlsSeaweed, certificates: Certificates, first: CertificateAuthority, second: CertificateAuthority
) -> None:
    async with ObjectStore(store.tls_settings, backoff=QUICK) as objects:
        await objects.put("a", b"first", deadline_s=D)
        certificates.trust(first, second)
        await restarted(store, certificates, second)
        assert (await objects.get("a", max_bytes=99, deadline_s=D)).body == b"first"
        certificates.trust(second)
        await objects.put("a", b"second", deadline_s=D)
        # Whoever is no longer trusted is refused: boto3 by itself adds to those whom it trusts, and forgets none.
        await restarted(store, certificates, first)
        with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await objects.get("a", max_bytes=99, deadline_s=D)
        certificates.trust(first)
        assert (await objects.get("a", max_bytes=99, deadline_s=D)).body == b"second"


@pytest.mark.slow
async def test_a_store_of_neither_authority_and_a_broken_file_are_refused(
    store: TlsSeaweed, certificates: Certificates, first: CertificateAuthority, second: CertificateAuthority
) -> None:
    async with ObjectStore(store.tls_settings, backoff=QUICK) as objects:
        await objects.put("a", b"1", deadline_s=D)
        await restarted(store, certificates, new_authority())
        certificates.trust(first, second)
        with pytest.raises(StoreUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await objects.head("a", deadline_s=D)
        certificates.trusted_file.unlink()
        with pytest.raises(StoreUnavailable, match=r"ca\.crt cannot be read"):
            await objects.head("a", deadline_s=D)


@pytest.mark.slow
async def test_requests_under_way_end_when_the_authority_is_renewed(
    store: TlsSeaweed, certificates: Certificates, first: CertificateAuthority, second: CertificateAuthority
) -> None:
    body = bytes(range(256)) * 4096
    async with ObjectStore(store.tls_settings, threads=8, backoff=QUICK) as objects:

        async def write(number: int) -> None:
            for turn in range(8):
                await objects.put(f"{number}", body + bytes([turn]), deadline_s=D)

        await objects.put("read", body, deadline_s=D)
        writing = [asyncio.create_task(write(number)) for number in range(4)]
        renewals = 0
        while not all(task.done() for task in writing):
            renewals += 1
            certificates.trust(first, *[second] * (renewals % 2))
            assert (await objects.get("read", max_bytes=4 << 20, deadline_s=D)).body == body
        await asyncio.gather(*writing)
        assert renewals > 1
        for number in range(4):
            assert (await objects.get(f"{number}", max_bytes=4 << 20, deadline_s=D)).body == body + bytes([7])
