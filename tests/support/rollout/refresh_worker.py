"""A worker's refresh in a process of its own, which kills itself at one step of a swap."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tests.support.rollout.job import Job
from tests.support.rollout.served_policies import weights_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.rollout.engines.client import EngineClient
from trimtab.rollout.engines.sparse_file import SparseFile
from trimtab.weights.apply.transaction import PreparedUpdate

_LIFE_S = 60.0


class Step(StrEnum):
    """After which it dies."""

    PACKED = "packed"
    COMMITTED = "committed"
    PAUSED = "paused"
    GIVING = "giving"
    GIVEN = "given"


@dataclass(frozen=True, kw_only=True)
class Refresher:
    nats: NatsSettings
    objects: ObjectStoreSettings
    topology: JobTopology
    public_key: str
    models: Path
    scratch: Path
    url: str
    step: Step

    def run(self) -> None:
        """For a child process."""
        match self.step:
            case Step.PACKED:
                _die_after(SparseFile, "pack")
            case Step.COMMITTED:
                _die_after(PreparedUpdate, "commit")
            case Step.PAUSED:
                _die_after_awaiting(EngineClient, "pause")
            case Step.GIVING:
                _die_while_awaiting(EngineClient, "update_weights_from_sparse_file")
            case Step.GIVEN:
                _die_after_awaiting(EngineClient, "update_weights_from_sparse_file")
        asyncio.run(self._refresh())

    async def _refresh(self) -> None:
        async with await Bus.connect(self.nats, name="refresher") as bus:
            job = Job(bus, self.topology)
            async with (
                weights_of(job, self.objects, self.models, self.scratch, public_key=self.public_key) as weights,
                weights.worker_policy(self.url),
            ):
                await asyncio.sleep(_LIFE_S)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after(kind: type, name: str) -> None:
    original: Callable[..., Any] = getattr(kind, name)

    def last(*args: Any, **kwargs: Any) -> Any:
        original(*args, **kwargs)
        _die()

    setattr(kind, name, last)


def _die_after_awaiting(kind: type, name: str) -> None:
    original: Callable[..., Awaitable[Any]] = getattr(kind, name)

    async def last(*args: Any, **kwargs: Any) -> Any:
        await original(*args, **kwargs)
        _die()

    setattr(kind, name, last)


def _die_while_awaiting(kind: type, name: str) -> None:
    """Once the request has left, and before its answer can have come back to us."""
    original: Callable[..., Awaitable[Any]] = getattr(kind, name)

    async def last(*args: Any, **kwargs: Any) -> Any:
        sent = asyncio.ensure_future(original(*args, **kwargs))
        await asyncio.wait({sent}, timeout=0.005)
        _die()

    setattr(kind, name, last)
