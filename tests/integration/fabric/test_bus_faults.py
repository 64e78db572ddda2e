"""What happens to the bus when servers die, passwords are wrong and certificates are not."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pydantic import SecretStr
from structlog.testing import capture_logs

from tests.support.polling import eventually, patiently
from trimtab.embedded.binaries import find_binary
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.ports import free_ports
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus, BusState
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.errors import BusClosed, BusTimeout, BusUnauthenticated, BusUnavailable
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.requests import Reply, Request, request, serve
from trimtab.fabric.bus.streams import declare_consumer, declare_stream
from trimtab.fabric.bus.topology import BucketSpec, ConsumerSpec, StreamSpec
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.settings import NatsSettings

D = 60.0
STREAM = StreamSpec(name="S", subjects=("s.>",), allow_direct=True)
QUICK = FullJitter(base_s=0.02, cap_s=0.2)


async def test_wrong_password_is_typed_quick_and_not_repeated(nats_settings: NatsSettings) -> None:
    secret = "hunter2-and-more"
    settings = nats_settings.model_copy(update={"password": SecretStr(secret)})
    started = time.monotonic()
    with capture_logs() as logs, pytest.raises(BusUnauthenticated) as refused:
        await Bus.connect(settings, name="test")
    assert time.monotonic() - started < 60.0
    assert secret not in f"{refused.value!r} {refused.value} {logs}"


async def test_a_password_in_the_address_is_not_repeated_either(nats_settings: NatsSettings) -> None:
    address = nats_settings.servers[0].removeprefix("nats://")
    settings = NatsSettings(servers=(f"nats://who:hunter2-and-more@{address}",))
    with capture_logs() as logs, pytest.raises(BusUnauthenticated) as refused:
        await Bus.connect(settings, name="test")
    assert "hunter2" not in f"{refused.value!r} {logs}"
    assert address in str(refused.value)


async def test_no_server_fails_after_the_connect_timeout() -> None:
    (port,) = free_ports(1)
    settings = NatsSettings(servers=(f"nats://127.0.0.1:{port}",), connect_timeout_s=0.5)
    started = time.monotonic()
    with pytest.raises(BusUnavailable, match=str(port)):
        await Bus.connect(settings, name="test")
    assert 0.4 < time.monotonic() - started < 60.0


async def test_a_server_that_never_greets_fails_after_the_connect_timeout() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        settings = NatsSettings(servers=(f"nats://127.0.0.1:{silent.getsockname()[1]}",), connect_timeout_s=0.3)
        with pytest.raises(BusUnavailable):
            await Bus.connect(settings, name="test")


async def test_a_malformed_credentials_file_is_an_error_not_a_hang(nats_settings: NatsSettings, tmp_path: Path) -> None:
    creds = tmp_path / "user.creds"
    creds.write_text("nothing of use\n")
    settings = NatsSettings(servers=nats_settings.servers, credentials_file=creds, connect_timeout_s=0.5)
    with pytest.raises((BusUnavailable, BusUnauthenticated)):
        await Bus.connect(settings, name="test")


async def test_close_is_final_and_repr_is_clean(nats_settings: NatsSettings) -> None:
    assert nats_settings.password is not None
    bus = await Bus.connect(nats_settings, name="test")
    assert bus.state is BusState.CONNECTED
    assert nats_settings.password.get_secret_value() not in repr(bus)
    await bus.close()
    await bus.close()
    assert bus.state is BusState.CLOSED
    with pytest.raises(BusClosed):
        await publish(bus, "s.x", b"", message_id="1")


async def test_cancellation_passes_through(nats_settings: NatsSettings) -> None:
    async with await Bus.connect(nats_settings, name="test") as bus:

        async def never(_: Request) -> Reply:
            await asyncio.sleep(60)
            return Reply(b"")

        async with await serve(bus, "req.never", never, queue_group="g", concurrency=1, handler_deadline_s=1.0):
            asked = asyncio.create_task(request(bus, "req.never", b"", deadline_s=60.0))
            await asyncio.sleep(0)
            asked.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asked


async def test_kill_9_in_mid_publish_loses_nothing_acknowledged(own_nats: EmbeddedNats) -> None:
    async with await Bus.connect(own_nats.settings, name="test", backoff=QUICK) as bus:
        await declare_stream(bus, STREAM, deadline_s=D)
        acknowledged: dict[int, bytes] = {}
        total, kills = 3000, {700, 1800}
        async with WindowedPublisher(bus, max_messages=128, max_bytes=8 << 20, deadline_s=D) as publisher:
            futures = []
            restarting: list[asyncio.Task[EmbeddedNats]] = []
            for number in range(total):
                if number in kills:
                    await asyncio.gather(*restarting)
                    await asyncio.to_thread(own_nats.kill)
                    restarting.append(asyncio.create_task(asyncio.to_thread(own_nats.start)))
                payload = b"%d" % number * 100
                futures.append((payload, await publisher.publish("s.x", payload, message_id=str(number))))
            await publisher.flush()
        await asyncio.gather(*restarting)
        acknowledged = {future.result().sequence: payload for payload, future in futures}
        assert len(acknowledged) == total
        assert bus.epoch >= 2
        stored = await get_messages(bus, "S", sorted(acknowledged), deadline_s=D)
        assert {s: m.payload for s, m in stored.complete().items()} == acknowledged
        assert max(acknowledged) == total  # repeated, and yet nothing twice


async def test_everything_recovers_after_a_restart(own_nats: EmbeddedNats) -> None:
    async with await Bus.connect(own_nats.settings, name="test", backoff=QUICK) as bus:
        await declare_stream(bus, STREAM, deadline_s=D)
        await declare_consumer(bus, ConsumerSpec(name="c", stream="S"), deadline_s=D)
        bucket = await KeyValue.declare(bus, BucketSpec(name="b"), deadline_s=D)
        await bucket.put("before", b"1")

        async def echo(asked: Request) -> Reply:
            return Reply(asked.payload)

        async with (
            KvWatch(bucket) as watch,
            await Puller.open(bus, stream="S", consumer="c") as puller,
            await serve(bus, "req.echo", echo, queue_group="g", concurrency=1, handler_deadline_s=60.0),
        ):
            assert isinstance(await watch.next(deadline_s=D), Entry)
            assert await watch.next(deadline_s=D) == SnapshotComplete()
            watching = asyncio.create_task(watch.next(deadline_s=D))
            fetching = asyncio.create_task(puller.fetch(batch=10, wait_s=D))
            await asyncio.to_thread(own_nats.kill)
            await eventually(lambda: bus.state is BusState.RECONNECTING, timeout_s=10.0, interval_s=0.01)
            started = time.monotonic()
            with pytest.raises(BusUnavailable):
                await publish(bus, "s.x", b"", message_id="down", deadline_s=0.3)
            with pytest.raises((BusUnavailable, BusTimeout)):
                await bucket.get("before", deadline_s=0.3)
            assert time.monotonic() - started < 60.0
            await asyncio.to_thread(own_nats.start)
            revision = await bucket.put("after", b"2")
            assert await watching == Entry("after", b"2", revision)
            await publish(bus, "s.x", b"hello", message_id="1")
            assert [d.payload for d in await fetching] == [b"hello"]
            assert (await request(bus, "req.echo", b"x", deadline_s=60.0)).payload == b"x"
            assert bus.state is BusState.CONNECTED


async def test_a_stalled_server_is_a_timeout(own_nats: EmbeddedNats) -> None:
    """SIGSTOP: the socket stays open and nobody reads from it."""
    async with await Bus.connect(own_nats.settings, name="test") as bus:
        await declare_stream(bus, STREAM, deadline_s=D)
        assert own_nats.pid is not None
        subprocess.run(["kill", "-STOP", str(own_nats.pid)], check=True)
        try:
            started = time.monotonic()
            payload = b"x" * (4 << 20)
            outcomes = await asyncio.gather(
                *(publish(bus, "s.x", payload, message_id=str(n), deadline_s=0.5) for n in range(6)),
                return_exceptions=True,
            )
            assert {type(outcome) for outcome in outcomes} == {BusTimeout}
            assert time.monotonic() - started < 60.0
        finally:
            subprocess.run(["kill", "-CONT", str(own_nats.pid)], check=True)
        await publish(bus, "s.x", b"", message_id="after", deadline_s=D)


async def test_an_error_line_from_the_server_is_followed_by_a_reconnect(nats_settings: NatsSettings) -> None:
    async with await Bus.connect(nats_settings, name="test", backoff=QUICK) as bus:
        await bus._client._process_err("'User Authentication Expired'")
        await eventually(lambda: bus.epoch == 1 and bus.state is BusState.CONNECTED, timeout_s=10.0, interval_s=0.01)
        await request_account_info(bus)


async def test_a_late_pong_does_not_end_the_read_loop(nats_settings: NatsSettings) -> None:
    async with await Bus.connect(nats_settings, name="test") as bus:
        given_up: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        given_up.cancel()
        await bus._client._send_ping(given_up)
        await eventually(lambda: not bus._client._pongs, timeout_s=10.0, interval_s=0.01)
        await request_account_info(bus)


async def request_account_info(bus: Bus) -> None:
    assert b"limits" in (await bus.ask("$JS.API.INFO", deadline_s=60.0)).data


def _certificate(
    name: str, *, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer[0].subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
    )
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


@pytest.fixture
def tls_server(tmp_path: Path) -> Iterator[NatsSettings]:
    ca = _certificate("ca", issuer=None)
    leaf, leaf_key = _certificate("server", issuer=ca)
    other = _certificate("other", issuer=None)
    pem = serialization.Encoding.PEM
    (tmp_path / "ca.pem").write_bytes(ca[0].public_bytes(pem))
    (tmp_path / "other.pem").write_bytes(other[0].public_bytes(pem))
    (tmp_path / "cert.pem").write_bytes(leaf.public_bytes(pem))
    (tmp_path / "key.pem").write_bytes(
        leaf_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (port,) = free_ports(1)
    config = {
        "listen": f"127.0.0.1:{port}",
        "authorization": {"user": "u", "password": "p"},
        "tls": {"cert_file": str(tmp_path / "cert.pem"), "key_file": str(tmp_path / "key.pem")},
    }
    (tmp_path / "tls.conf").write_text(json.dumps(config))
    command = [str(find_binary("nats-server")), "-c", str(tmp_path / "tls.conf"), "-l", str(tmp_path / "log")]
    with subprocess.Popen(command) as process:
        yield NatsSettings(
            servers=(f"nats://127.0.0.1:{port}",),
            user="u",
            password=SecretStr("p"),
            tls_ca_file=tmp_path / "ca.pem",
            connect_timeout_s=60.0,
        )
        process.kill()


async def test_tls_with_our_own_authority(tls_server: NatsSettings) -> None:
    async with await Bus.connect(tls_server, name="test") as bus:
        transport: Any = bus._client._transport
        assert transport._io_writer.get_extra_info("cipher")
        async with patiently(5.0):
            await bus.send("anything", b"x")


async def test_tls_of_another_authority_is_refused(tls_server: NatsSettings) -> None:
    assert tls_server.tls_ca_file is not None
    settings = tls_server.model_copy(update={"tls_ca_file": tls_server.tls_ca_file.with_name("other.pem")})
    with pytest.raises(BusUnauthenticated, match="CERTIFICATE_VERIFY_FAILED"):
        await Bus.connect(settings, name="test")


async def test_a_server_without_tls_never_sees_the_password(
    nats_settings: NatsSettings, tls_server: NatsSettings
) -> None:
    settings = nats_settings.model_copy(update={"tls_ca_file": tls_server.tls_ca_file})
    with pytest.raises(BusUnauthenticated, match="secure connection"):
        await Bus.connect(settings, name="test")


async def test_a_missing_authority_file_is_named(nats_settings: NatsSettings, tmp_path: Path) -> None:
    settings = nats_settings.model_copy(update={"tls_ca_file": tmp_path / "absent.pem"})
    with pytest.raises(BusUnauthenticated, match=r"absent\.pem"):
        await Bus.connect(settings, name="test")
