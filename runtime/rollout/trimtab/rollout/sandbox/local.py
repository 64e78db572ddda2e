"""Runs programs on this machine, each in a cell of its own that nothing leaves.

Cells are kept ready, so that a program waits for its own start alone; there are never more than the sandbox has room
for. What a cell says is as little to be trusted as the program that ran in it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from types import TracebackType
from typing import Self

from trimtab.rollout.sandbox.cells import Cell, Nursery
from trimtab.rollout.sandbox.contract import Ended, Program, ProgramLimits, SandboxFailed
from trimtab.rollout.sandbox.programs import check

_MIB = 1 << 20
_GRACE_S = 10.0
"""For a cell to tell how the program ended, once its time is over."""
_MAX_PROGRAM_BYTES = 256 * _MIB
_LIMITS = ProgramLimits()


class LocalSandbox:
    """At most `concurrency` programs at once, each within `limits` at most; `spare` cells are kept ready."""

    def __init__(
        self,
        *,
        limits: ProgramLimits = _LIMITS,
        concurrency: int = 8,
        spare: int = 4,
    ) -> None:
        self._limits = limits
        self._room = asyncio.Semaphore(concurrency)
        self._spare = spare
        self._nursery = Nursery(most=_MAX_PROGRAM_BYTES)
        self._ready: deque[Cell] = deque()
        self._filling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._nursery.start()
        self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})
        for cell in self._ready:
            cell.close()
        self._ready.clear()
        await self._nursery.close()

    async def run(self, program: Program, /) -> Ended:
        check(program, within=self._limits)
        async with self._room:
            cell = await self._take()
            try:
                async with asyncio.timeout(program.limits.wall_s + _GRACE_S):
                    return await cell.run(program)
            except TimeoutError:
                raise SandboxFailed("the cell of a program did not tell how it ended") from None
            finally:
                cell.close()
                self._fill()

    async def _take(self) -> Cell:
        while self._ready:
            cell = self._ready.popleft()
            if cell.alive:
                return cell
            cell.close()
        return await self._nursery.cell()

    def _fill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._keep_ready())

    async def _keep_ready(self) -> None:
        # Whoever needs a cell asks for one itself then, and hears why there is none.
        with contextlib.suppress(SandboxFailed):
            while len(self._ready) < self._spare:
                self._ready.append(await self._nursery.cell())
