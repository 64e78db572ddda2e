"""The worker's side of the sandbox in its pod. What comes from there is what a program could have said."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.sandbox import frames, programs
from trimtab.rollout.sandbox.contract import Ended, Program, ProgramLimits, SandboxFailed
from trimtab.rollout.sandbox.layers import Layer, LayerName
from trimtab.rollout.sandbox.server import reachable

_CONNECT_TIMEOUT_S = 30.0
_ANSWER_S = 30.0
"""Beyond the program's own time."""
_AGAIN = FullJitter(base_s=0.05, cap_s=2.0)
_MAX_LAYERS_BYTES = 1 << 14


class PodSandbox:
    """Behind the socket at `path`. As many programs at once as the sandbox has room for, each within `limits`."""

    def __init__(self, path: Path, *, limits: ProgramLimits, concurrency: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._limits = limits
        self._room = asyncio.Semaphore(concurrency)
        self._clock = clock

    async def run(self, program: Program, /) -> Ended:
        program = programs.bounded(program, within=self._limits)
        programs.check(program)
        most = program.limits.output_bytes + program.limits.disk_bytes
        async with self._room, self._connected() as (reader, writer):
            try:
                async with asyncio.timeout(program.limits.wall_s + _ANSWER_S):
                    writer.write(programs.request(program))
                    with contextlib.suppress(ConnectionError):  # it may have said why before it went
                        await writer.drain()
                    told, blobs = await frames.read(reader, most_header=frames.MAX_REPORT_HEADER_BYTES, most=most)
            except TimeoutError:
                raise SandboxFailed("the sandbox did not answer") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise SandboxFailed("the sandbox was lost while a program ran") from None
            except frames.FrameUnreadable as error:
                raise SandboxFailed(f"the sandbox said what cannot be: {error}") from None
        return programs.ended(program, told, blobs)

    async def layers(self) -> Sequence[Layer]:
        """Those that it says hold. Raises SandboxFailed."""
        async with self._connected() as (reader, writer):
            try:
                async with asyncio.timeout(_ANSWER_S):
                    writer.write(frames.packed({"ask": "layers"}, []))
                    await writer.drain()
                    told, _ = await frames.read(reader, most_header=_MAX_LAYERS_BYTES, most=0)
                return [Layer(LayerName(layer["name"]), str(layer["missing"])) for layer in told["layers"]]
            except TimeoutError:
                raise SandboxFailed("the sandbox did not answer") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                raise SandboxFailed("the sandbox was lost") from None
            except (frames.FrameUnreadable, KeyError, TypeError, ValueError) as error:
                raise SandboxFailed(f"the sandbox said what cannot be: {type(error).__name__}") from None

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Also while the sandbox is being started again."""
        until = self._clock() + _CONNECT_TIMEOUT_S
        attempt = 0
        while True:
            try:
                with reachable(self._path) as short:
                    reader, writer = await asyncio.wait_for(asyncio.open_unix_connection(short), _CONNECT_TIMEOUT_S)
                break
            except (OSError, TimeoutError) as error:
                if self._clock() >= until:
                    raise SandboxFailed(f"the sandbox cannot be reached: {error}") from None
            await asyncio.sleep(_AGAIN.delay_s(attempt))
            attempt += 1
        try:
            yield reader, writer
        finally:
            writer.close()
