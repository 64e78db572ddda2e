"""Runs programs on this machine, each in a jail of its own that nothing leaves.

Jails are kept ready, so that a program waits for its own start alone; there are never more than the sandbox has room
for. What a jail says is as little to be trusted as the program that ran in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.sandbox.contract import Ended, Program, ProgramLimits, SandboxFailed
from trimtab.rollout.sandbox.jails import Jail, Zygote
from trimtab.rollout.sandbox.layers import Layer, LayerName
from trimtab.rollout.sandbox.opening import open_zygote
from trimtab.rollout.sandbox.programs import bounded, check

_log = structlog.get_logger(__name__)
_LIMITS = ProgramLimits()
_GRACE_S = 10.0
"""For a jail to tell how the program ended, once its time is over."""
_AGAIN = FullJitter(base_s=0.1, cap_s=5.0)


class LocalSandbox:
    """At most `concurrency` programs at once, each within `limits` at most; `spare` jails are kept ready.

    `without` are layers that are not to be used, as where the kernel does not have them.
    """

    def __init__(
        self,
        *,
        limits: ProgramLimits = _LIMITS,
        concurrency: int = 8,
        spare: int = 4,
        without: frozenset[LayerName] = frozenset(),
    ) -> None:
        self._limits = limits
        self._room = asyncio.Semaphore(concurrency)
        self._spare = min(spare, concurrency)
        self._without = without
        self._folder = tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True)
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()
        self._losses = 0
        self._ready: deque[Jail] = deque()
        self._filling: asyncio.Task[None] | None = None
        self.layers: Sequence[Layer] = ()

    async def __aenter__(self) -> Self:
        """Raises SandboxFailed where too little would hold programs."""
        opened = await open_zygote(Path(self._folder.name), without=self._without)
        self._zygote, self.layers = opened.zygote, opened.layers
        self._fill()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._filling is not None:
            self._filling.cancel()
            await asyncio.wait({self._filling})
        for jail in self._ready:
            jail.close()
        self._ready.clear()
        if self._zygote is not None:
            await self._zygote.close()
            self._zygote = None
        await asyncio.to_thread(self._folder.cleanup)

    async def run(self, program: Program, /) -> Ended:
        program = bounded(program, within=self._limits)
        check(program)
        async with self._room:
            jail = await self._take()
            try:
                async with asyncio.timeout(program.limits.wall_s + _GRACE_S):
                    return await jail.run(program)
            except TimeoutError:
                raise SandboxFailed("the jail of a program did not tell how it ended") from None
            finally:
                jail.close()
                self._fill()

    async def _take(self) -> Jail:
        zygote = await self._running()
        while self._ready:
            jail = self._ready.popleft()
            if jail.alive:
                return jail
            jail.close()
        return await zygote.jail()

    async def _running(self) -> Zygote:
        """The zygote, started again where something has killed it."""
        async with self._starting:
            if self._zygote is None:
                raise SandboxFailed("the sandbox is closed")
            if not self._zygote.alive:
                _log.warning("sandbox_restarted", losses=self._losses + 1)
                # Its jails end with it, some a moment later.
                while self._ready:
                    self._ready.popleft().close()
                await self._zygote.close()
                await asyncio.sleep(_AGAIN.delay_s(self._losses))
                self._losses += 1
                self._zygote.start()
            return self._zygote

    def _fill(self) -> None:
        if self._filling is None or self._filling.done():
            self._filling = asyncio.create_task(self._keep_ready())

    async def _keep_ready(self) -> None:
        # Whoever needs a jail asks for one itself then, and hears why there is none.
        with contextlib.suppress(SandboxFailed):
            while len(self._ready) < self._spare:
                self._ready.append(await (await self._running()).jail())
