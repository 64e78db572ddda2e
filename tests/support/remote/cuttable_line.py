"""A TCP line to a server on loopback that a test can cut, let hang, slow down and mend, whatever is spoken on it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from enum import Enum, auto
from typing import Self

from trimtab.embedded.ports import LOOPBACK, free_ports

_CHUNK = 64 * 1024


class _State(Enum):
    WHOLE = auto()
    CUT = auto()
    HANGING = auto()


class CuttableLine:
    """Runs in a thread of its own, so that tests which block can use it. It keeps its port while it is cut."""

    def __init__(self, port: int, *, bytes_per_second: float | None = None) -> None:
        self._target = port
        self._rate = bytes_per_second
        (self.port,) = free_ports(1)
        self._state = _State.WHOLE
        self._moved = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._lines: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(120.0)
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(120.0)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10.0)
        self._loop.close()

    @property
    def bytes_moved(self) -> int:
        return self._moved

    def cut(self) -> None:
        """Connections are reset, and new ones too."""
        self._become(_State.CUT)

    def hang(self) -> None:
        """Connections stay open and carry nothing, new ones too."""
        self._become(_State.HANGING)

    def mend(self) -> None:
        self._become(_State.WHOLE)

    def _become(self, state: _State) -> None:
        async def change() -> None:
            self._state = state
            if state is _State.HANGING:
                self._flowing.clear()
            else:
                self._flowing.set()
            if state is not _State.HANGING:
                await self._drop_all()

        asyncio.run_coroutine_threadsafe(change(), self._loop).result(120.0)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, LOOPBACK, self.port)

    async def _close(self) -> None:
        self._server.close()
        await self._server.wait_closed()
        await self._drop_all()

    async def _drop_all(self) -> None:
        lines = list(self._lines)
        for line in lines:
            line.cancel()
        await asyncio.gather(*lines, return_exceptions=True)
        # Aborted transports close in the next turns of the loop.
        for _ in range(3):
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._lines.add(task)
        try:
            if self._state is _State.CUT:
                return
            await self._until_flowing()
            upstream_reader, upstream_writer = await asyncio.open_connection(LOOPBACK, self._target)
            try:
                pumps = {
                    asyncio.create_task(self._pump(reader, upstream_writer)),
                    asyncio.create_task(self._pump(upstream_reader, writer)),
                }
                try:
                    await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for pump in pumps:
                        pump.cancel()
                    await asyncio.gather(*pumps, return_exceptions=True)
            finally:
                upstream_writer.transport.abort()
        except (OSError, asyncio.CancelledError):
            return
        finally:
            self._lines.discard(task)
            writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while chunk := await reader.read(_CHUNK):
                await self._until_flowing()
                self._moved += len(chunk)
                if self._rate is not None:
                    await asyncio.sleep(len(chunk) / self._rate)
                writer.write(chunk)
                await writer.drain()

    async def _until_flowing(self) -> None:
        await self._flowing.wait()
