"""Keeps an engine on the newest weights: fetches and verifies them while it serves, then swaps in one short pause.

The engine has the last word on what it serves. It is asked when the worker starts, when it was lost and when a swap
failed, so a crash between any two steps leaves one version or the other, and the next step follows from that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineError, EngineNotFound, EngineRefused, ServerInfo, WeightUpdate
from trimtab.rollout.policy.freshness import Announcements
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import BASE, VersionGate, position_of
from trimtab.rollout.refresh.host_copy import HostCopy
from trimtab.rollout.refresh.pointers import newer_pointers
from trimtab.rollout.refresh.swap import SWAP_DEADLINE_S, Give, SwapKind, SwapMetrics, WeightSwap
from trimtab.rollout.refresh.turns import SwapTurns
from trimtab.weights.puller import PULL_FAILURES
from trimtab.weights.store.position import Position

_log = structlog.get_logger(__name__)
_ASK_DEADLINE_S = 30.0
_BACKOFF = FullJitter(base_s=0.2, cap_s=5.0)
_LEASE_EVERY_S = 120.0


@dataclass(frozen=True, kw_only=True)
class RefreshTarget:
    """One policy on one engine: what the refresh works on."""

    policy: str
    base_model: Path
    engine: EngineClient
    gate: VersionGate
    sampler: PolicySampler
    announcements: Announcements
    copy: HostCopy
    """Shared with the policy's other engines in the pod."""
    begins_elsewhere: bool = False
    """The job resumes another: version 0 is what its trainer publishes first, and not the model's own weights."""


class WeightRefresh:
    """Follows the policy's pointer for one engine, which was started with the model's own weights: version 0, but in a
    job that begins elsewhere."""

    def __init__(
        self,
        target: RefreshTarget,
        pointers: KeyValue,
        turns: SwapTurns,
        metrics: SwapMetrics,
        *,
        engine_start_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._target = target
        self._policy = target.policy
        self._engine = target.engine
        self._gate = target.gate
        self._copy = target.copy
        self._pointers = pointers
        self._turns = turns
        self._metrics = metrics
        self._engine_start_timeout_s = engine_start_timeout_s
        self._clock = clock
        self._swap = WeightSwap(target.engine, target.gate, clock=clock)
        self._wanted: WeightPointer | None = None
        self._served: Position | None = None
        """None while only the engine knows."""
        self._takes_changes = False
        self._launched: ServerInfo | None = None
        """Whether it takes what changed alone. Found out once in its life: at its start, or when it does not."""
        self._lost = False
        """The engine was seen to fail since it was last asked."""
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
        async for pointer in newer_pointers(self._pointers, self._policy):
            if pointer is not None:
                self._wanted = pointer
                self._target.announcements.note(pointer.version)
            self._news.set()

    async def _watch_engine(self) -> None:
        """An engine that died and came back serves its first weights again: give it the present ones."""
        lost = self._target.sampler.lost
        while True:
            await lost.wait()
            lost.clear()
            self._lost = True
            self._news.set()
            # A request that finds it lost again within this time has seen the same death.
            await asyncio.sleep(1.0)

    async def _refresh(self) -> None:
        failures = 0
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._bring(self._wanted)
            except (EngineError, *PULL_FAILURES, BusError, TimeoutError, OSError) as error:
                delay = _BACKOFF.delay_s(failures)
                failures += 1
                _log.warning("refresh_repeated", policy=self._policy, error=repr(error), delay_s=delay)
                self._served = None
                await asyncio.sleep(delay)
                self._news.set()
            else:
                failures = 0
                if self._wanted is not None or not self._target.begins_elsewhere:
                    self.ready.set()

    async def _bring(self, wanted: WeightPointer | None) -> None:
        began = self._clock()
        served = await self._serving()
        if wanted is None:
            if served != BASE and not self._target.begins_elsewhere:
                await self._give_whole(self._target.base_model, BASE, began=began)
        elif served is None or served < Position(wanted.epoch, wanted.version):
            async with self._copy.turn():
                held, packed = await self._copy.hold(wanted, base=served if self._takes_changes else None)
                # The swap of an engine that serves nothing of use needs no turn in the pool.
                async with self._turns.turn() if self.ready.is_set() and served is not None else nullcontext():
                    if not (packed and await self._give_sparse(held, began=began)):
                        await self._give_whole(self._copy.folder, held, began=began)
            await self._renew_lease()

    async def _serving(self) -> Position | None:
        """What the engine serves, if it is something that it can have from us. Otherwise requests wait for the swap
        that this calls for: answers from weights as old as the model itself cannot be trained on.
        """
        if self._served is not None and not self._lost:
            return self._served
        self._served, self._lost = None, False
        position = await self._ask_engine()
        if position is not None and (self._gate.expects(position) or not self.ready.is_set()):
            self._gate.settle(position)
            self._gate.open()
            self._served = position
            self._target.sampler.find()
        else:
            self._gate.close()
        return self._served

    async def _ask_engine(self) -> Position | None:
        await self._engine.wait_healthy(timeout_s=self._engine_start_timeout_s)
        # A worker that died in the middle of a swap left it paused, perhaps with an update that is still going on.
        await self._engine.resume(timeout_s=_ASK_DEADLINE_S)
        launched = await self._engine.server_info(timeout_s=SWAP_DEADLINE_S)
        self._launched = launched
        self._takes_changes = self._copy.carrier is not None and self._copy.carrier.suits(launched)
        info = await self._engine.model_info(timeout_s=_ASK_DEADLINE_S)
        _log.info("engine_asked", policy=self._policy, weights=info.weight_version)
        return position_of(info.weight_version)

    async def _give_sparse(self, position: Position, *, began: float) -> bool:
        """False if the engine does not take it and serves what it did."""
        carrier, launched = self._copy.carrier, self._launched
        assert carrier is not None, "nothing is packed without a carrier"
        assert launched is not None, "an engine is asked before it is given anything"

        async def give(label: str) -> WeightUpdate:
            return await carrier.give(self._engine, launched=launched, weight_version=label, timeout_s=SWAP_DEADLINE_S)

        try:
            await self._give(position, give, kind=SwapKind.SPARSE, began=began)
        except EngineRefused as error:
            self._takes_changes = not isinstance(error, EngineNotFound)
            _log.warning("sparse_update_refused", policy=self._policy, reason=str(error))
            return False
        return True

    async def _give_whole(self, folder: Path, position: Position, *, began: float) -> None:
        async def give(label: str) -> WeightUpdate:
            return await self._engine.update_weights_from_disk(folder, weight_version=label, timeout_s=SWAP_DEADLINE_S)

        await self._give(position, give, kind=SwapKind.WHOLE, began=began)

    async def _give(self, position: Position, give: Give, *, kind: SwapKind, began: float) -> None:
        # What an engine with strange weights is at would be discarded: there is nothing to be kept running.
        keeps_running = self._target.sampler.accounts_for_tokens and self._served is not None
        swap = self._swap.under_running_requests if keeps_running else self._swap.between_requests
        pause_s = await swap(position, give)
        self._served = position
        self._target.sampler.find()
        refresh_s = self._clock() - began
        self._metrics.swapped(policy=self._policy, kind=kind, refresh_s=refresh_s, pause_s=pause_s)
        _log.info(
            "weights_swapped",
            policy=self._policy,
            epoch=position.epoch,
            version=position.version,
            kind=kind.value,
            refresh_s=round(refresh_s, 4),
            pause_s=round(pause_s, 4),
        )

    async def _keep_lease(self) -> None:
        """What this worker holds is not collected as long as it says so."""
        while True:
            await asyncio.sleep(_LEASE_EVERY_S)
            await self._renew_lease()

    async def _renew_lease(self) -> None:
        try:
            await self._copy.renew_lease(deadline_s=_LEASE_EVERY_S)
        except ObjectStoreError as error:
            _log.warning("lease_not_renewed", policy=self._policy, error=str(error))
