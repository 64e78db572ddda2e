"""Puts new weights into an engine in one short pause, such that no token's version is in doubt afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum

from trimtab.fabric.metrics import Metrics
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.contract import EngineRefused, WeightUpdate
from trimtab.rollout.policy.version_gate import VersionGate, label_of
from trimtab.weights.store.position import Position

SWAP_DEADLINE_S = 120.0
_STRAGGLERS_FIRST_S = 0.1
_STRAGGLERS_MAX_S = 2.0
_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 60.0, 120.0, 300.0)
Give = Callable[[str], Awaitable[WeightUpdate]]
"""Has the engine take weights, and call them by this label."""


class SwapKind(StrEnum):
    """What the engine was given: all the weights, or the elements that changed."""

    WHOLE = "whole"
    SPARSE = "sparse"


class SwapMetrics:
    """How long weights take to reach an engine, and for how much of that it is paused, for all policies of a worker."""

    def __init__(self, metrics: Metrics) -> None:
        labels = ("policy", "kind")
        self._refresh = metrics.histogram(
            "weight_refresh_seconds", "From news of a version to its being served.", labels, buckets=_BUCKETS
        )
        self._pause = metrics.histogram(
            "weight_swap_pause_seconds", "Of that, the time for which the engine was paused.", labels, buckets=_BUCKETS
        )

        self.newest: Mapping[str, float] = {}
        """Of the last swap, of whichever policy, for heartbeats."""

    def swapped(self, *, policy: str, kind: SwapKind, refresh_s: float, pause_s: float) -> None:
        self._refresh.labels(policy, kind.value).observe(refresh_s)
        self._pause.labels(policy, kind.value).observe(pause_s)
        self.newest = {"seconds_refresh": refresh_s, "seconds_pause": pause_s}


class WeightSwap:
    """One engine. Both ways return for how many seconds it was paused.

    After a failure the gate allows for the old weights and for the new, until the engine was asked.
    """

    def __init__(self, engine: EngineClient, gate: VersionGate, *, clock: Callable[[], float]) -> None:
        self._engine = engine
        self._gate = gate
        self._clock = clock
        self._pauses_itself = False
        """By its latest update it takes weights between two tokens: a pause around that would only be longer."""

    async def under_running_requests(self, position: Position, give: Give) -> float:
        """For an engine that names the weights of each token: requests are held where they are, and go on."""
        began = self._clock()
        if self._pauses_itself:
            pause_s = await self._give(position, give)
            return self._clock() - began if pause_s is None else pause_s
        try:
            await self._engine.pause("in_place", timeout_s=SWAP_DEADLINE_S)
            await self._give(position, give)
        finally:
            await self._engine.resume(timeout_s=SWAP_DEADLINE_S)
        return self._clock() - began

    async def between_requests(self, position: Position, give: Give) -> float:
        """For any engine: what runs is aborted with its tokens so far, and nothing is under way in the swap."""
        began = self._clock()
        self._gate.close()
        try:
            try:
                await self._quiesce()
                await self._give(position, give)
            finally:
                await self._engine.resume(timeout_s=SWAP_DEADLINE_S)
        finally:
            self._gate.open()
        return self._clock() - began

    async def _give(self, position: Position, give: Give) -> float | None:
        """The engine's word on its pause."""
        before = self._gate.position
        self._gate.begin(position)
        self._pauses_itself = False
        try:
            update = await give(label_of(position))
        except EngineRefused:
            # It said no, and what it refuses changes nothing.
            self._gate.settle(before)
            raise
        self._gate.settle(position)
        self._pauses_itself = update.pause_s is not None
        return update.pause_s

    async def _quiesce(self) -> None:
        """Pause, until every request that was sent has been answered.

        A request that was on its way when the engine paused waits there until it goes on. So after a moment without
        the last answers the engine is let go and paused again, which aborts those too.
        """
        patience_s = _STRAGGLERS_FIRST_S
        async with asyncio.timeout(SWAP_DEADLINE_S):
            while True:
                await self._engine.pause("abort", timeout_s=SWAP_DEADLINE_S)
                try:
                    await self._gate.wait_empty(timeout_s=patience_s)
                except TimeoutError:
                    patience_s = min(patience_s * 2, _STRAGGLERS_MAX_S)
                    await self._engine.resume(timeout_s=SWAP_DEADLINE_S)
                else:
                    return
