"""Looks at an engine's load every second, for the concurrency that follows from it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from trimtab.rollout.engines.errors import EngineError, EngineUnavailable
from trimtab.rollout.engines.sampling_engine import SamplingEngine
from trimtab.rollout.policy.sampler import PolicySampler
from trimtab.rollout.policy.version_gate import VersionGate
from trimtab.rollout.worker.concurrency import Concurrency, LoadSample

_log = structlog.get_logger(__name__)
_DEADLINE_S = 2.0


class LoadWatch:
    """One engine. When it does not answer, that says nothing about its load. But it may come back with other weights,
    and somebody should ask before a request is wasted on them.
    """

    def __init__(
        self,
        name: str,
        engine: SamplingEngine,
        sampler: PolicySampler,
        gate: VersionGate,
        concurrency: Concurrency,
        *,
        in_flight: Callable[[], int],
        every_s: float = 1.0,
    ) -> None:
        self._name = name
        self._engine = engine
        self._sampler = sampler
        self._gate = gate
        self._concurrency = concurrency
        self._in_flight = in_flight
        self._every_s = every_s
        self._overloads = sampler.overloads

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            if not self._gate.swapping:
                await self._look()

    async def _look(self) -> None:
        try:
            load = await self._engine.load(timeout_s=_DEADLINE_S)
        except EngineError as error:
            _log.info("load_unknown", engine=self._name, error=str(error))
            if isinstance(error, EngineUnavailable):
                self._sampler.lost.set()
            return
        if self._gate.swapping:
            return  # what waits in a pause does not wait for want of room
        overloads = self._sampler.overloads
        sample = LoadSample(
            running=load.running,
            waiting=load.waiting,
            token_usage=load.token_usage,
            overloads=overloads - self._overloads,
        )
        self._overloads = overloads
        before = self._concurrency.limit
        self._concurrency.note(self._name, sample, in_flight=self._in_flight())
        if self._concurrency.limit < before:
            _log.info(
                "fewer_tasks",
                engine=self._name,
                limit=self._concurrency.limit,
                running=sample.running,
                waiting=sample.waiting,
                token_usage=round(sample.token_usage, 3),
                overloads=sample.overloads,
            )
