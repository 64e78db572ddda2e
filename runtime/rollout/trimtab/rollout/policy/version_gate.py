"""Keeps account of which weights can have sampled the tokens of a request, while weights are swapped around it.

An engine calls the weights we give it by epoch and version, as in `3.17`. The version alone would not do: a trainer
that went back to a checkpoint repeats version numbers with other weights, and only the epoch tells them apart.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from trimtab.rollout.engines.contract import BASE_WEIGHTS
from trimtab.rollout.phases import WEIGHTS, phase
from trimtab.weights.store.position import Position

BASE = Position(epoch=0, version=0)
"""The model the job began with, which no trainer published: the first one claims epoch 1."""
_LABEL = re.compile(r"([1-9][0-9]{0,15})\.(0|[1-9][0-9]{0,15})")


def label_of(position: Position) -> str:
    return BASE_WEIGHTS if position == BASE else f"{position.epoch}.{position.version}"


def position_of(label: str) -> Position | None:
    """None for a name that is not ours, such as SGLang's `default`."""
    if label == BASE_WEIGHTS:
        return BASE
    match = _LABEL.fullmatch(label)
    return Position(epoch=int(match[1]), version=int(match[2])) if match else None


class Crossing:
    """One request under way, with the weights that the engine can have had meanwhile, in the order it had them."""

    def __init__(self, *possible: Position) -> None:
        self.possible = list(possible)


class VersionGate:
    """Requests pass while the gate is open. A swap either closes it and waits until none is under way, or begins and
    settles while they run: then each request knows of the weights that came.
    """

    def __init__(self, position: Position = BASE) -> None:
        self._position = position
        self._incoming: Position | None = None
        self._under_way: set[Crossing] = set()
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def position(self) -> Position:
        """The weights that the engine was last known to serve."""
        return self._position

    @property
    def version(self) -> int:
        return self._position.version

    @property
    def swapping(self) -> bool:
        """Requests may be held up: the gate is closed, or new weights are on their way into the engine."""
        return self._incoming is not None or not self._open.is_set()

    @property
    def is_open(self) -> bool:
        return self._open.is_set()

    @property
    def in_flight(self) -> int:
        return len(self._under_way)

    @asynccontextmanager
    async def request(self) -> AsyncIterator[Crossing]:
        """Wait until the gate is open. What is possible may grow until the request is over."""
        # No await between the check and the count: on one event loop nothing can close the gate in between.
        if not self._open.is_set():
            with phase(WEIGHTS):
                while not self._open.is_set():
                    await self._open.wait()
        crossing = Crossing(self._position, *([self._incoming] if self._incoming is not None else []))
        self._under_way.add(crossing)
        self._empty.clear()
        try:
            yield crossing
        finally:
            self._under_way.discard(crossing)
            if not self._under_way:
                self._empty.set()

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def wait_empty(self, *, timeout_s: float) -> None:
        async with asyncio.timeout(timeout_s):
            await self._empty.wait()

    def begin(self, incoming: Position) -> None:
        """From now until it is settled, the engine may serve the weights it had or these."""
        if incoming == self._position:
            return
        self._incoming = incoming
        for crossing in self._under_way:
            crossing.possible.append(incoming)

    def settle(self, position: Position) -> None:
        """The engine serves these."""
        self._position = position
        self._incoming = None

    def expects(self, position: Position) -> bool:
        """Whether the engine can have these by what it was given, rather than by a restart."""
        return position in (self._position, self._incoming)
