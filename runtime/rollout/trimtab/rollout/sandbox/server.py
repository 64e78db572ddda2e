"""The sandbox of a pod: takes programs over a socket in a folder that it shares with the worker, and nothing else.

A connection is one program. Whoever closes it before the end ends the program.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

import structlog

from trimtab.rollout.sandbox import frames, programs
from trimtab.rollout.sandbox.contract import Ended, Program, SandboxFailed
from trimtab.rollout.sandbox.layers import Layer

_log = structlog.get_logger(__name__)
_REQUEST_TIMEOUT_S = 60.0
_MAX_PROGRAM_BYTES = 512 << 20


class LayeredSandbox(Protocol):
    @property
    def layers(self) -> Sequence[Layer]: ...

    async def run(self, program: Program, /) -> Ended: ...


@contextlib.asynccontextmanager
async def serving(sandbox: LayeredSandbox, path: Path, *, connections: int) -> AsyncIterator[None]:
    """At most so many at once; others wait to be read."""
    room = asyncio.Semaphore(connections)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with room:
                writer.write(await _answered(sandbox, reader))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            pass  # nobody waits for the answer
        except frames.FrameUnreadable as error:
            _log.warning("request_unreadable", error=str(error))
        finally:
            writer.close()

    with reachable(path) as short:
        async with await asyncio.start_unix_server(answer, sock=_bound(short)):
            yield


def _bound(path: str) -> socket.socket:
    """In the place of one that a sandbox before this one has left. The worker may be another user in its container:
    whoever sees the folder may come.
    """
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108 - as short as it is
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.bind(path)
    os.chmod(path, 0o666)  # noqa: S103, PTH101
    return made


@contextlib.contextmanager
def reachable(path: Path) -> Iterator[str]:
    """The socket's path by a name that is short enough for one, however long it is."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


async def _answered(sandbox: LayeredSandbox, reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(_REQUEST_TIMEOUT_S):
        about, blobs = await frames.read(reader, most_header=frames.MAX_HEADER_BYTES, most=_MAX_PROGRAM_BYTES)
    if about.get("ask") == "layers":
        return frames.packed({"layers": [asdict(layer) for layer in sandbox.layers]}, [])
    try:
        program = programs.parsed(about, blobs)
        running = asyncio.create_task(sandbox.run(program))
        gone = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({running, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                raise ConnectionAbortedError
            return programs.report(program, running.result())
        finally:
            for task in (running, gone):
                task.cancel()
            await asyncio.wait({running, gone})
    except SandboxFailed as error:
        return frames.packed({"failed": str(error)}, [])
