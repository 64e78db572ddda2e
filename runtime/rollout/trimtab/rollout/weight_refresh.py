"""Keeps an engine on the newest weights: fetches and verifies while it serves, then swaps in one short pause."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.client import EngineClient, EngineError
from trimtab.rollout.pace import Announcements
from trimtab.rollout.sampler import PolicySampler
from trimtab.rollout.version_gate import VersionGate
from trimtab.weights.puller import PULL_FAILURES, WeightPuller
from trimtab.weights.store.position import Position

_log = structlog.get_logger(__name__)
_PULL_DEADLINE_S = 600.0
_SWAP_DEADLINE_S = 120.0
_STRAGGLERS_FIRST_S = 0.1
_STRAGGLERS_MAX_S = 2.0
_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 5.0
_LEASE_EVERY_S = 120.0


class WeightRefresh:
    """One policy on one engine. The engine starts with the model's own weights, which are version 0."""

    def __init__(
        self,
        engine: EngineClient,
        gate: VersionGate,
        sampler: PolicySampler,
        puller: WeightPuller,
        pointers: KeyValue,
        announcements: Announcements,
        *,
        policy: str,
        base_model: Path,
        engine_start_timeout_s: float,
    ) -> None:
        self._engine = engine
        self._gate = gate
        self._sampler = sampler
        self._puller = puller
        self._pointers = pointers
        self._announcements = announcements
        self._policy = policy
        self._base_model = base_model
        self._engine_start_timeout_s = engine_start_timeout_s
        self._wanted: WeightPointer | None = None
        self._served: Position | None = None
        self._news = asyncio.Event()
        self.ready = asyncio.Event()
        """The engine serves the weights that were the newest when this worker began, or newer ones."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_pointer())
            tasks.create_task(self._watch_engine())
            tasks.create_task(self._refresh())
            tasks.create_task(self._keep_lease())

    async def _follow_pointer(self) -> None:
        async with KvWatch(self._pointers, keys=self._policy) as watch:
            async for change in watch:
                if isinstance(change, Entry):
                    self._note(change.value)
                elif isinstance(change, SnapshotComplete) and self._wanted is None:
                    self._news.set()

    def _note(self, value: bytes) -> None:
        try:
            pointer = decode(value, WeightPointer)
        except WireError as error:
            _log.error("pointer_refused", policy=self._policy, reason=str(error))
            return
        # A trainer that was superseded may still get a word in; what it says is behind what we know.
        if self._wanted is None or (pointer.epoch, pointer.version) > (self._wanted.epoch, self._wanted.version):
            self._wanted = pointer
            self._announcements.note(pointer.version)
            self._news.set()

    async def _watch_engine(self) -> None:
        """An engine that died and came back serves its first weights again: give it the present ones."""
        while True:
            await self._sampler.lost.wait()
            self._served = None
            self._news.set()
            self._sampler.lost.clear()
            # Whoever finds it lost again within this time has seen the same death.
            await asyncio.sleep(1.0)

    async def _refresh(self) -> None:
        delay = _RETRY_FIRST_S
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._bring(self._wanted)
            except (EngineError, *PULL_FAILURES, BusError, TimeoutError, OSError) as error:
                _log.warning("refresh_repeated", policy=self._policy, error=repr(error), delay_s=delay)
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_MAX_S)
                self._news.set()
            else:
                delay = _RETRY_FIRST_S
                self.ready.set()

    async def _bring(self, wanted: WeightPointer | None) -> None:
        if wanted is None:
            await self._swap(self._base_model, version=0)
            return
        if self._served is not None and self._served >= Position(wanted.epoch, wanted.version):
            return
        pulled = await self._puller.pull(wanted, deadline_s=_PULL_DEADLINE_S)
        await self._swap(self._puller.folder, version=pulled.version)
        self._served = pulled

    async def _keep_lease(self) -> None:
        """What this worker holds is not collected as long as it says so."""
        while True:
            await asyncio.sleep(_LEASE_EVERY_S)
            try:
                await self._puller.renew_lease(deadline_s=_LEASE_EVERY_S)
            except ObjectStoreError as error:
                _log.warning("lease_not_renewed", policy=self._policy, error=str(error))

    async def _swap(self, folder: Path, *, version: int) -> None:
        """Nothing is in flight while the weights change, so no token's version is in doubt."""
        await self._engine.wait_healthy(timeout_s=self._engine_start_timeout_s)
        before = self._gate.version
        self._gate.close()
        try:
            await self._quiesce()
            await self._engine.update_weights_from_disk(folder, weight_version=str(version), timeout_s=_SWAP_DEADLINE_S)
            before = version
        finally:
            # After a failure the engine may serve either version; each answer says which, and a wrong one is discarded.
            try:
                await self._engine.resume(timeout_s=_SWAP_DEADLINE_S)
            finally:
                self._gate.reopen(version=before)
        _log.info("weights_swapped", policy=self._policy, version=version)

    async def _quiesce(self) -> None:
        """Pause, until every request that was sent has been answered.

        A request that was on its way when the engine paused waits there until it goes on. So after a moment without
        the last answers the engine is let go and paused again, which aborts those too.
        """
        patience_s = _STRAGGLERS_FIRST_S
        async with asyncio.timeout(_SWAP_DEADLINE_S):
            while True:
                await self._engine.pause("abort", timeout_s=_SWAP_DEADLINE_S)
                try:
                    await self._gate.wait_empty(timeout_s=patience_s)
                except TimeoutError:
                    patience_s = min(patience_s * 2, _STRAGGLERS_MAX_S)
                    await self._engine.resume(timeout_s=_SWAP_DEADLINE_S)
                else:
                    return
