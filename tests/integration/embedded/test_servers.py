"""Embedded NATS and SeaweedFS: ready in seconds, authenticated, their data intact after kill -9, gone when stopped."""

from __future__ import annotations

import http.client
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import boto3
import nats
import nats.errors
import psutil
import pytest
from botocore.exceptions import ClientError
from nats.aio.client import Client

from tests.support.polling import eventually
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.embedded.server import DataFolderInUseError, EmbeddedServer, ServerStartError
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.restarts import RestartPolicy
from trimtab.fabric.settings import ObjectStoreSettings

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@contextmanager
def s3(settings: ObjectStoreSettings, *, secret: str | None = None) -> Iterator[S3Client]:
    assert settings.access_key_id is not None
    assert settings.secret_access_key is not None
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name=settings.region,
        aws_access_key_id=settings.access_key_id.get_secret_value(),
        aws_secret_access_key=secret or settings.secret_access_key.get_secret_value(),
    )
    yield client
    client.close()


async def connect(server: EmbeddedNats, *, password: str | None = None) -> Client:
    return await nats.connect(
        server.settings.servers[0],
        user=server.settings.user,
        password=password or server.password,
        connect_timeout=60,
        allow_reconnect=False,
    )


async def test_nats_keeps_acknowledged_messages_through_kill_and_restart(own_nats: EmbeddedNats) -> None:
    client = await connect(own_nats)
    stream = client.jetstream(timeout=60)
    await stream.add_stream(name="KEPT", subjects=["kept"])
    for number in range(200):
        await stream.publish("kept", str(number).encode())
    own_nats.kill()
    await client.close()
    own_nats.start()
    client = await connect(own_nats)
    info = await client.jetstream(timeout=60).stream_info("KEPT")
    assert info.state.messages == 200
    await client.close()


async def test_nats_refuses_a_wrong_password(own_nats: EmbeddedNats) -> None:
    with pytest.raises(nats.errors.Error, match="Authorization Violation"):
        await connect(own_nats, password="wrong")


async def test_supervised_nats_comes_back_by_itself_on_the_same_port(tmp_path: Path) -> None:
    with EmbeddedNats(tmp_path) as server:
        port = server.ports["client"]
        server.kill()
        await eventually(lambda: server.restarts == 1 and server.pid is not None, timeout_s=10)
        assert server.ports["client"] == port
        await eventually(server.answers, timeout_s=10)
        client = await connect(server)
        await client.close()


async def test_a_supervised_server_waits_as_its_restart_policy_says(tmp_path: Path) -> None:
    asked: list[float] = []

    def drawn(low: float, high: float) -> float:
        asked.append(high)
        return 0.0

    restarts = RestartPolicy(backoff=FullJitter(base_s=0.01, cap_s=0.04, uniform=drawn), stable_s=1e9)
    with EmbeddedNats(tmp_path, restarts=restarts) as server:
        for times in (1, 2, 3, 4):
            await eventually(lambda: server.pid is not None, timeout_s=10)
            server.kill()
            await eventually(lambda: server.restarts == times, timeout_s=10)  # noqa: B023 - called in this turn
    # What two machines draw between nothing and this differs, so their servers do not come back together.
    assert asked == [0.01, 0.02, 0.04, 0.04]


def test_seaweedfs_keeps_objects_through_kill_and_restart(own_seaweed: EmbeddedSeaweed) -> None:
    settings = own_seaweed.settings
    body = bytes(range(256)) * 4096 * 5
    with s3(settings) as store:
        store.put_object(Bucket=settings.bucket, Key="kept", Body=body)
    own_seaweed.kill()
    own_seaweed.start()
    with s3(own_seaweed.settings) as store:
        assert store.get_object(Bucket=settings.bucket, Key="kept")["Body"].read() == body


def test_seaweedfs_refuses_a_wrong_secret(own_seaweed: EmbeddedSeaweed) -> None:
    with (
        s3(own_seaweed.settings, secret="wrong") as store,
        pytest.raises(ClientError, match="SignatureDoesNotMatch|Forbidden|AccessDenied"),
    ):
        store.list_objects_v2(Bucket=own_seaweed.settings.bucket)


def test_seaweedfs_cannot_be_read_around_its_credentials(own_seaweed: EmbeddedSeaweed) -> None:
    settings = own_seaweed.settings
    with s3(settings) as store:
        store.put_object(Bucket=settings.bucket, Key="private", Body=b"private" * 1000)
    filer = http.client.HTTPConnection("127.0.0.1", own_seaweed.ports["filer"], timeout=120)
    filer.request("GET", f"/buckets/{settings.bucket}/private")
    assert filer.getresponse().status == http.HTTPStatus.UNAUTHORIZED
    filer.close()


@pytest.mark.parametrize("kind", [EmbeddedNats, EmbeddedSeaweed])
def test_servers_listen_on_loopback_only(tmp_path: Path, kind: type[EmbeddedServer]) -> None:
    with kind(tmp_path) as server:
        assert server.pid is not None
        listening = [
            c.laddr.ip for c in psutil.Process(server.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN
        ]
        assert set(listening) == {"127.0.0.1"}


@pytest.mark.slow
def test_a_port_that_was_taken_meanwhile_is_the_only_one_that_changes(own_seaweed: EmbeddedSeaweed) -> None:
    before = dict(own_seaweed.ports)
    own_seaweed.stop()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before["filer.grpc"]))
        own_seaweed.start()
        assert {name for name, port in own_seaweed.ports.items() if before[name] != port} == {"filer.grpc"}
        with s3(own_seaweed.settings) as store:
            store.put_object(Bucket=own_seaweed.settings.bucket, Key="after", Body=b"1")


@pytest.mark.slow
def test_seaweedfs_leaves_no_socket_behind_even_one_that_was_killed(tmp_path: Path) -> None:
    def sockets(server: EmbeddedSeaweed) -> list[Path]:
        return [path for path in Path("/tmp").glob("seaweedfs-*.sock") if str(server.ports["s3"]) in path.name]

    killed, stopped = EmbeddedSeaweed(tmp_path / "killed", supervise=False), EmbeddedSeaweed(tmp_path / "stopped")
    with stopped:
        killed.start()
        assert sockets(killed)
        assert sockets(stopped)
        killed.kill()
    assert sockets(killed) == sockets(stopped) == []


def test_a_data_folder_serves_one_process_at_a_time(own_nats: EmbeddedNats) -> None:
    with pytest.raises(DataFolderInUseError, match="another process runs on the data folder"):
        EmbeddedNats(own_nats.data_folder).start()


def test_a_server_that_cannot_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "jetstream").write_text("a file where the folder belongs")
    with pytest.raises(ServerStartError, match="storage directory is not a directory"):
        EmbeddedNats(tmp_path).start()


def test_passwords_are_for_the_owner_only(own_nats: EmbeddedNats) -> None:
    for name in ("identity.json", "nats.conf"):
        assert (own_nats.data_folder / name).stat().st_mode & 0o077 == 0


# A shell that runs tests in the background has them ignore SIGINT, and children inherit that.
_OWNER = """
import signal, sys, time
from pathlib import Path
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[1])
servers = [EmbeddedNats(folder / "nats").start(), EmbeddedSeaweed(folder / "seaweedfs").start()]
print(*(server.pid for server in servers), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize(
    "signum",
    [signal.SIGKILL, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGINT))],
)
async def test_no_server_outlives_its_owner(tmp_path: Path, signum: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", _OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as owner:
        try:
            assert owner.stdout is not None
            pids = [int(pid) for pid in owner.stdout.readline().split()]
            assert len(pids) == 2
            owner.send_signal(signum)
            owner.wait(200)
        finally:
            owner.kill()  # or a failure would wait until it has slept
    await eventually(lambda: not any(psutil.pid_exists(pid) for pid in pids), timeout_s=20)
