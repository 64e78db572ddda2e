"""The sandbox container and the worker's side of it: the same contract over a socket, and nothing believed of it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import signal
import struct
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.support.sandbox import PATIENT, python, told
from trimtab.rollout.sandbox.client import PodSandbox
from trimtab.rollout.sandbox.contract import End, SandboxFailed
from trimtab.rollout.sandbox.layers import too_little
from trimtab.rollout.sandbox.server import reachable


@pytest.fixture
def socket_path(tmp_path: Path) -> Path:
    """Longer than the address of a socket may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    return folder / "programs"


@pytest.fixture
def container(socket_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    started = start(socket_path)
    yield started
    started.terminate()
    assert started.wait(30) == 0


def start(socket_path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "trimtab.rollout.sandbox", f"--socket={socket_path}", "--concurrency=2"]
    return subprocess.Popen([*command, f"--wall-s={PATIENT.wall_s}", f"--cpu-s={PATIENT.cpu_s}"], env={})


def client(socket_path: Path) -> PodSandbox:
    return PodSandbox(socket_path, limits=PATIENT, concurrency=4, clock=time.monotonic)


async def test_programs_run_in_the_container(container: subprocess.Popen[bytes], socket_path: Path) -> None:
    sandbox = client(socket_path)
    source = "import sys; open('out', 'w').write(sys.stdin.read()); sys.exit(3)"
    ended = await asyncio.gather(
        *(sandbox.run(python(source, stdin=str(number).encode(), collect=("no", "out"))) for number in range(6))
    )
    assert [(one.end, one.exit_code, dict(one.files)) for one in ended] == [
        (End.EXITED, 3, {"out": str(number).encode()}) for number in range(6)
    ]
    assert not too_little(await sandbox.layers())


async def test_a_program_that_nobody_waits_for_leaves_room(
    container: subprocess.Popen[bytes], socket_path: Path
) -> None:
    sandbox = client(socket_path)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.gather(*(sandbox.run(python("import time; time.sleep(600)")) for _ in range(2)))
    async with asyncio.timeout(30):
        assert (await sandbox.run(python("print(1)"))).succeeded


@pytest.mark.slow
async def test_a_container_that_dies_fails_the_episode_and_the_next_program_finds_the_new_one(
    socket_path: Path,
) -> None:
    first = start(socket_path)
    sandbox = client(socket_path)
    assert (await sandbox.run(python("print(1)"))).succeeded
    running = asyncio.create_task(sandbox.run(python("import time; time.sleep(600)")))
    await asyncio.sleep(1)
    first.kill()
    with pytest.raises(SandboxFailed, match="lost"):
        await running
    first.wait(30)
    second = start(socket_path)
    try:
        ended = await sandbox.run(python("print(2)"))
        assert ended.stdout == b"2\n", told(ended)
    finally:
        second.send_signal(signal.SIGTERM)
        second.wait(30)


@contextlib.asynccontextmanager
async def saying(path: Path, answer: bytes) -> AsyncIterator[None]:
    """A container that a program has taken over."""

    async def tell(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    with reachable(path) as short:
        async with await asyncio.start_unix_server(tell, short):
            yield


def frame(about: object, blobs: bytes = b"") -> bytes:
    text = json.dumps(about).encode()
    return struct.pack(">I", len(text)) + text + blobs


FINE = {"end": "exited", "code": 0, "wall_s": 1, "cpu_s": 1, "peak_memory_bytes": 1, "collected": [], "blobs": [0, 0]}


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xff\xff\xff",
        b"\0\0\0\x05[[[[[",
        struct.pack(">I", 200_000) + b"[" * 200_000,
        frame([]),
        frame({}),
        frame({**FINE, "blobs": [1 << 40, 0]}),
        frame({**FINE, "blobs": [-1, 0]}),
        frame({**FINE, "blobs": [True, 0]}, b"x"),
        frame({**FINE, "blobs": [PATIENT.output_bytes + 1, 0]}, bytes(PATIENT.output_bytes + 1)),
        frame({**FINE, "blobs": []}),
        frame({**FINE, "end": "won"}),
        frame({**FINE, "code": "0"}),
        frame({**FINE, "code": None}),
        frame({**FINE, "wall_s": float("nan")}),
        frame({**FINE, "cpu_s": -1}),
        frame({**FINE, "peak_memory_bytes": 1.5}),
        frame({**FINE, "collected": [0], "blobs": [0, 0, 0]}),
        frame({**FINE, "collected": [-1], "blobs": [0, 0, 0]}),
        frame({**FINE, "collected": "x", "blobs": [0, 0, 0]}),
    ],
)
async def test_what_cannot_be_said_is_not_believed(socket_path: Path, answer: bytes) -> None:
    async with saying(socket_path, answer):
        with pytest.raises(SandboxFailed):
            await client(socket_path).run(python(""))
        with pytest.raises(SandboxFailed):
            await client(socket_path).layers()


async def test_what_can_be_said_is_believed(socket_path: Path) -> None:
    """So that the test above can fail."""
    async with saying(socket_path, frame(FINE)):
        assert (await client(socket_path).run(python(""))).succeeded


async def test_a_sandbox_that_is_not_there_fails_the_episode(
    socket_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 20))
    sandbox = PodSandbox(socket_path, limits=PATIENT, concurrency=1, clock=lambda: next(clock))
    with pytest.raises(SandboxFailed, match="cannot be reached"):
        await sandbox.run(python(""))


async def test_no_program_is_given_more_than_the_manifest_says(
    container: subprocess.Popen[bytes], socket_path: Path
) -> None:
    limits = dataclasses.replace(PATIENT, output_bytes=100)
    sandbox = PodSandbox(socket_path, limits=limits, concurrency=1, clock=time.monotonic)
    ended = await sandbox.run(python("print('x' * 1000)"))
    assert ended.end is End.OUTPUT, told(ended)
