"""A link between a client and a server on this machine that limits every connection's rate, as object stores and long
distances do: on bare loopback one connection already takes all that two cores can copy.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

_CHUNK_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 30.0


@contextmanager
def limited_link(port: int, *, bytes_per_s: float) -> Iterator[int]:
    """A port that leads to `port`, from a process of its own so that it does not share the client's interpreter."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(port, bytes_per_s, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise TimeoutError("the link's process did not start")
        yield ours.recv()
    finally:
        process.terminate()
        process.join(5)


def _serve(port: int, bytes_per_s: float, ready: Connection) -> None:
    asyncio.run(_forward_all(port, bytes_per_s, ready))


async def _forward_all(port: int, bytes_per_s: float, ready: Connection) -> None:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(_LOOPBACK, port)
        await asyncio.gather(
            _pump(reader, upstream_writer, bytes_per_s),
            _pump(upstream_reader, writer, bytes_per_s),
            return_exceptions=True,
        )

    server = await asyncio.start_server(connected, _LOOPBACK, 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: float) -> None:
    clock = asyncio.get_running_loop().time
    free_at = clock()
    while data := await reader.read(_CHUNK_BYTES):
        writer.write(data)
        await writer.drain()
        free_at = max(free_at, clock() - 0.05) + len(data) / bytes_per_s
        if free_at > clock():
            await asyncio.sleep(free_at - clock())
    writer.close()
