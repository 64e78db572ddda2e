"""A link between a client and a server on this machine with the rate and latency of a long way: on bare loopback one
connection already takes all that two cores can copy.

Both directions are limited separately. What it leaves out is TCP's own start: connections are at full speed at once.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

_CHUNK_BYTES = 64 * 1024
_LOOPBACK = "127.0.0.1"
_START_TIMEOUT_S = 30.0
_LATE_S = 0.02
"""How late a process may be woken up without the link becoming slower. More would be a burst after every pause."""
_MOST_UNDER_WAY = 256


@dataclass(frozen=True, kw_only=True)
class Link:
    """`shared` means one rate for all connections together, as of a line; otherwise each has it, as from a store."""

    bytes_per_s: float
    shared: bool = False
    latency_s: float = 0.0
    """Each way."""


@contextmanager
def limited_link(port: int, link: Link) -> Iterator[int]:
    """A port that leads to `port`, from a process of its own so that it does not share the client's interpreter."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(port, link, theirs), daemon=True)
    process.start()
    try:
        if not ours.poll(_START_TIMEOUT_S):
            raise TimeoutError("the link's process did not start")
        yield ours.recv()
    finally:
        process.terminate()
        process.join(5)


class _Line:
    """Sends one stretch of bytes after the other."""

    def __init__(self, bytes_per_s: float, clock: Callable[[], float]) -> None:
        self._bytes_per_s = bytes_per_s
        self._clock = clock
        self._free_at = clock()

    async def send(self, count: int) -> float:
        """Returns when the bytes have left, with the time at which they should have."""
        now = self._clock()
        self._free_at = max(self._free_at, now - _LATE_S) + count / self._bytes_per_s
        sent_at = max(self._free_at, now)
        await asyncio.sleep(sent_at - now)
        return sent_at


def _serve(port: int, link: Link, ready: Connection) -> None:
    asyncio.run(_forward_all(port, link, ready))


async def _forward_all(port: int, link: Link, ready: Connection) -> None:
    clock = asyncio.get_running_loop().time
    there, back = _Line(link.bytes_per_s, clock), _Line(link.bytes_per_s, clock)

    def line(common: _Line) -> _Line:
        return common if link.shared else _Line(link.bytes_per_s, clock)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream_reader, upstream_writer = await asyncio.open_connection(_LOOPBACK, port)
        await asyncio.gather(
            _forward(reader, upstream_writer, line(there), link.latency_s),
            _forward(upstream_reader, writer, line(back), link.latency_s),
            return_exceptions=True,
        )

    server = await asyncio.start_server(connected, _LOOPBACK, 0)
    ready.send(server.sockets[0].getsockname()[1])
    await server.serve_forever()


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: _Line, latency_s: float) -> None:
    under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_MOST_UNDER_WAY)
    arriving = asyncio.create_task(_arrive(under_way, writer))
    try:
        while data := await reader.read(_CHUNK_BYTES):
            await under_way.put((await line.send(len(data)) + latency_s, data))
        await under_way.put((0.0, b""))
        await arriving
    finally:
        arriving.cancel()


async def _arrive(under_way: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
    clock = asyncio.get_running_loop().time
    try:
        while (arrival := await under_way.get())[1]:
            await asyncio.sleep(max(0.0, arrival[0] - clock()))
            writer.write(arrival[1])
            await writer.drain()
    finally:
        writer.close()
