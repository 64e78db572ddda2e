"""Takes the part of weight refresh for an endpoint whose weights never change.

It still follows what the trainer announces: that tells the worker how far its weights are behind, and the worker takes
no tasks once their samples would be too old to train on.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.rollout.engines.contract import EngineError
from trimtab.rollout.policy.freshness import Announcements
from trimtab.rollout.refresh.pointers import newer_pointers

_log = structlog.get_logger(__name__)
_RETRY = FullJitter(base_s=1.0, cap_s=30.0)


class Endpoint(Protocol):
    """Something elsewhere that says whether it can be used."""

    async def check(self) -> None: ...


class FixedWeights:
    """One policy on one endpoint, which serves version 0 for ever."""

    def __init__(self, endpoint: Endpoint, pointers: KeyValue, announcements: Announcements, *, policy: str) -> None:
        self._endpoint = endpoint
        self._pointers = pointers
        self._announcements = announcements
        self._policy = policy
        self.ready = asyncio.Event()
        """The endpoint has answered."""

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_pointer())
            tasks.create_task(self._wait_for_endpoint())

    async def _follow_pointer(self) -> None:
        async for pointer in newer_pointers(self._pointers, self._policy):
            if pointer is not None:
                self._announcements.note(pointer.version)

    async def _wait_for_endpoint(self) -> None:
        attempt = 0
        while not self.ready.is_set():
            try:
                await self._endpoint.check()
            except EngineError as error:
                delay = _RETRY.delay_s(attempt)
                _log.warning("endpoint_not_ready", policy=self._policy, kind=error.kind, why=str(error), delay_s=delay)
                await asyncio.sleep(delay)
                attempt += 1
            else:
                self.ready.set()
        _log.info("weights_stay_as_they_are", policy=self._policy, version=0)
