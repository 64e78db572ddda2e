"""Cut connections, objects that change while they are read, answers that get lost, and a store that only pretends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from pydantic import SecretStr

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.download import DownloadShape, download, download_to_file
from trimtab.fabric.objects.errors import (
    ObjectChanged,
    PreconditionFailed,
    StoreTimeout,
    StoreUnavailable,
    StoreUnfit,
)
from trimtab.fabric.objects.selftest import CHECKSUMS, IF_MATCH, IF_NONE_MATCH, prove_store
from trimtab.fabric.objects.upload import UploadShape, upload
from trimtab.fabric.settings import ObjectStoreSettings

MIB = 1024 * 1024
QUICK = FullJitter(base_s=0.01, cap_s=0.05)
SHAPE = DownloadShape(max_bytes=64 * MIB, range_bytes=4 * MIB, parallel=2)


class CuttingProxy:
    """Passes bytes to the real store; `cut(request)` says after how many bytes of answer a connection is cut, None for
    never.

    A fake, because a real store cannot be asked to break off in the middle of an answer.
    """

    def __init__(self, endpoint: str, cut: Callable[[bytes], int | None]) -> None:
        address = urlsplit(endpoint)
        self._upstream = (address.hostname, address.port)
        self._cut = cut
        self.cuts = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self._upstream) as server:
            left: list[int | None] = [None]

            def upward() -> None:
                with suppress(OSError):
                    while data := client.recv(65536):
                        if data[:4] in (b"GET ", b"PUT ", b"POST", b"HEAD"):
                            left[0] = self._cut(data)
                        server.sendall(data)
                with suppress(OSError):
                    server.shutdown(socket.SHUT_WR)

            threading.Thread(target=upward, daemon=True).start()
            with suppress(OSError):
                while data := server.recv(65536):
                    if left[0] is not None:
                        data = data[: left[0]]
                        left[0] -= len(data)
                        if data:
                            client.sendall(data)
                        if left[0] <= 0:
                            self.cuts += 1
                            client.shutdown(socket.SHUT_RDWR)
                            return
                    else:
                        client.sendall(data)


def through(settings: ObjectStoreSettings, proxy: CuttingProxy) -> ObjectStoreSettings:
    return settings.model_copy(update={"endpoint_url": proxy.url, "prefix": uuid.uuid4().hex})


def first_times(count: int, *, matching: bytes, after: int) -> Callable[[bytes], int | None]:
    lock, seen = threading.Lock(), [0]

    def cut(request: bytes) -> int | None:
        if matching not in request:
            return None
        with lock:
            seen[0] += 1
            return after if seen[0] <= count else None

    return cut


async def test_a_ranged_get_goes_on_after_cut_connections(object_store_settings: ObjectStoreSettings) -> None:
    assert object_store_settings.endpoint_url is not None
    proxy = CuttingProxy(object_store_settings.endpoint_url, first_times(4, matching=b"Range: bytes=", after=3 * MIB))
    body = os.urandom(11 * MIB)
    async with ObjectStore(through(object_store_settings, proxy), backoff=QUICK) as store:
        await store.put("big", body)
        steps: list[int] = []
        _, got = await download(
            store, "big", deadline_s=60.0, shape=SHAPE, progress=lambda done, total: steps.append(done)
        )
    assert got == body
    assert proxy.cuts >= 2
    assert steps[-1] == len(body)
    proxy.close()


async def test_a_file_download_is_resumed_by_the_next_call(
    object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    assert object_store_settings.endpoint_url is not None
    failing, first_part = threading.Event(), threading.Event()
    failing.set()
    ranges: list[bytes] = []

    def cut(request: bytes) -> int | None:
        start = request.find(b"Range: bytes=")
        if start < 0:
            return None
        asked = request[start : request.find(b"\r\n", start)]
        ranges.append(asked)
        if not failing.is_set() or b"bytes=0-" in asked:
            return None
        first_part.wait(60.0)
        return 100_000

    proxy = CuttingProxy(object_store_settings.endpoint_url, cut)
    body, path = os.urandom(12 * MIB), tmp_path / "big"
    async with ObjectStore(through(object_store_settings, proxy), backoff=QUICK) as store:
        await store.put("big", body)
        with pytest.raises(StoreUnavailable, match="big"):
            await download_to_file(
                store, "big", path, deadline_s=120.0, shape=SHAPE, progress=lambda done, total: first_part.set()
            )
        assert not path.exists()
        assert sorted(p.name for p in tmp_path.iterdir()) == ["big.partial", "big.ranges"]
        failing.clear()
        ranges.clear()
        await download_to_file(store, "big", path, deadline_s=60.0, shape=SHAPE)
    assert path.read_bytes() == body
    assert [p.name for p in tmp_path.iterdir()] == ["big"]
    assert ranges
    assert not any(asked.startswith(b"Range: bytes=0-") for asked in ranges)  # what was there was not asked for again
    proxy.close()


async def test_an_object_that_changes_under_a_download_is_noticed(
    object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    settings = object_store_settings.model_copy(update={"prefix": uuid.uuid4().hex})
    shape = DownloadShape(max_bytes=64 * MIB, range_bytes=MIB, parallel=1)
    async with ObjectStore(settings) as store, ObjectStore(settings) as other:
        for to_file in (False, True):
            await store.put("big", os.urandom(8 * MIB))
            replaced = False

            def replace(done: int, total: int) -> None:
                nonlocal replaced
                if not replaced:
                    replaced = True
                    other.put_once("big", bytes(8 * MIB), digest="0" * 32, write_id="other")

            if to_file:
                reading: Awaitable[object] = download_to_file(
                    store, "big", tmp_path / "big", deadline_s=60.0, shape=shape, progress=replace
                )
            else:
                reading = download(store, "big", deadline_s=60.0, shape=shape, progress=replace)
            with pytest.raises(ObjectChanged, match="big"):
                await reading
            assert list(tmp_path.iterdir()) == []


async def test_a_partial_file_of_another_version_is_not_used(
    object_store_settings: ObjectStoreSettings, tmp_path: Path
) -> None:
    settings = object_store_settings.model_copy(update={"prefix": uuid.uuid4().hex})
    async with ObjectStore(settings) as store:
        body = os.urandom(2 * MIB)
        await store.put("v", body)
        (tmp_path / "v.partial").write_bytes(bytes(2 * MIB))
        (tmp_path / "v.ranges").write_bytes(
            b'{"etag":"old","size":2097152,"range_bytes":4194304,"received":{"0":2097152}}'
        )
        await download_to_file(store, "v", tmp_path / "v", deadline_s=60.0, shape=SHAPE)
        assert (tmp_path / "v").read_bytes() == body


async def test_a_conditional_write_whose_answer_was_lost_is_recognised(
    object_store_settings: ObjectStoreSettings,
) -> None:
    assert object_store_settings.endpoint_url is not None
    proxy = CuttingProxy(object_store_settings.endpoint_url, first_times(1, matching=b"/lost", after=0))
    async with ObjectStore(through(object_store_settings, proxy), backoff=QUICK) as store:
        info = await put_if_absent(store, "lost", b"mine")
        assert proxy.cuts == 1
        assert await store.head("lost") == info
        with pytest.raises(PreconditionFailed):
            await put_if_absent(store, "lost", b"mine")
    proxy.close()
    proxy = CuttingProxy(object_store_settings.endpoint_url, first_times(1, matching=b"uploadId", after=0))
    shape = UploadShape(part_bytes=5 * MIB)
    async with ObjectStore(through(object_store_settings, proxy), backoff=QUICK) as store:
        await upload(store, "parts", bytes(6 * MIB), if_absent=True, deadline_s=60.0, shape=shape)
        assert proxy.cuts == 1
        swapped = await compare_and_swap(store, "parts", b"next", etag=(await store.head("parts")).etag)
        assert (await store.get("parts", max_bytes=10)).info == swapped
    proxy.close()


async def test_a_store_that_accepts_and_never_answers_is_a_timeout(object_store_settings: ObjectStoreSettings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        settings = object_store_settings.model_copy(
            update={"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}", "read_timeout_s": 1.0}
        )
        async with ObjectStore(settings) as store:
            started = time.monotonic()
            with pytest.raises(StoreTimeout, match="s3://trimtab/k"):
                await store.get("k", max_bytes=1, deadline_s=0.3)
            assert time.monotonic() - started < 60.0


class PretendingStore(BaseHTTPRequestHandler):
    """Takes everything and checks nothing, like `rclone serve s3`."""

    protocol_version = "HTTP/1.1"
    objects: dict[str, bytes]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.objects[self.path] = body
        self._answer(200, etag=hashlib.md5(body).hexdigest())

    def do_HEAD(self) -> None:
        body = self.objects.get(self.path)
        self._answer(404 if body is None else 200, etag=hashlib.md5(body or b"").hexdigest(), length=len(body or b""))

    def do_DELETE(self) -> None:
        self.objects.pop(self.path, None)
        self._answer(204)

    def _answer(self, status: int, *, etag: str = "", length: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(length))
        if etag:
            self.send_header("ETag", f'"{etag}"')
        self.end_headers()

    def log_message(self, *args: object) -> None:
        return


async def test_a_store_that_ignores_conditions_is_refused() -> None:
    handler = type("Handler", (PretendingStore,), {"objects": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        settings = ObjectStoreSettings(
            bucket="b",
            endpoint_url=f"http://127.0.0.1:{server.server_port}",
            access_key_id=SecretStr("k"),
            secret_access_key=SecretStr("s"),
        )
        async with ObjectStore(settings) as store:
            with pytest.raises(StoreUnfit, match="If-None-Match") as unfit:
                await prove_store(store)
        assert unfit.value.missing == (IF_NONE_MATCH, IF_MATCH, CHECKSUMS)
        assert handler.objects == {}  # type: ignore[attr-defined]
        await asyncio.to_thread(server.shutdown)
