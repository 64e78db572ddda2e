"""The verified weights of one policy on this machine, which all its engines in the pod are given from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.sparse_file import SparseCarrier
from trimtab.rollout.policy.version_gate import label_of
from trimtab.weights.apply.transaction import PreparedUpdate
from trimtab.weights.puller import WeightPuller
from trimtab.weights.store.position import Position

_PULL_DEADLINE_S = 600.0
_COMMIT_THREADS = 4


class HostCopy:
    """One engine at a time: while it reads the copy nothing may be committed to it, and the others serve meanwhile.
    Each that has its turn keeps to deadlines of its own, so a turn is waited for without one.
    """

    def __init__(self, puller: WeightPuller, carrier: SparseCarrier | None) -> None:
        """`carrier` is None where the engines take whole weights only."""
        self._puller = puller
        self.carrier = carrier
        self._turn = asyncio.Lock()
        self._packed: tuple[Position, Position] | None = None
        """From which weights to which the packed changes lead."""

    @property
    def folder(self) -> Path:
        return self._puller.folder

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        async with self._turn:
            yield

    async def hold(self, wanted: WeightPointer, *, base: Position | None) -> tuple[Position, bool]:
        """Bring the copy to the version that is wanted, or a later one, while engines serve. Says what it has then, and
        whether the changes are packed for an engine that serves `base`. Only in a turn.
        """
        held = self._puller.held
        if held is None or held < Position(wanted.epoch, wanted.version):
            await self._update(wanted, base=base)
            held = self._puller.held
        assert held is not None, "a pull without a copy builds one"
        # An engine that is behind the copy needs no store, and takes the changes that others were given.
        return held, base is not None and self._packed == (base, held)

    async def renew_lease(self, *, deadline_s: float) -> None:
        await self._puller.renew_lease(deadline_s=deadline_s)

    async def _update(self, wanted: WeightPointer, *, base: Position | None) -> None:
        update = await self._puller.prepare(wanted, deadline_s=_PULL_DEADLINE_S)
        self._packed = None
        if update is None:
            return
        with update:
            header = update.journal.header.base
            before = Position(header.epoch, header.version)
            packing = None
            if self.carrier is not None and base == before:
                packing = asyncio.to_thread(partial(self.carrier.pack, update, base_label=label_of(before)))
            packed = await self._commit(update, packing)
        if packed and self._puller.held is not None:
            self._packed = (before, self._puller.held)

    async def _commit(self, update: PreparedUpdate, packing: Awaitable[bool] | None) -> bool:
        """Both read the update, which stays open until both have ended, also when one of them fails."""
        committing = asyncio.to_thread(partial(update.commit, threads=_COMMIT_THREADS))
        outcomes = await asyncio.gather(committing, *([] if packing is None else [packing]), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return outcomes[-1] is True
