"""Ranks that publish together, all in one process: what one says is heard when all have spoken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tests.support.weights.states import LAYOUT, TrainedState
from trimtab.weights.codec.change import Bytes
from trimtab.weights.layout import Block, StateLayout


class Circle:
    """Where the ranks meet."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._rounds: list[_Round] = []

    def seat(self, rank: int) -> Seat:
        return Seat(self, rank)

    async def hear(self, turn: int, rank: int, word: bytes) -> list[bytes]:
        if turn == len(self._rounds):
            self._rounds.append(_Round())
        meeting = self._rounds[turn]
        assert rank not in meeting.words, "a rank came twice to one meeting"
        meeting.words[rank] = word
        if len(meeting.words) == self.size:
            meeting.complete.set()
        await meeting.complete.wait()
        return [meeting.words[rank] for rank in range(self.size)]


@dataclass
class _Round:
    words: dict[int, bytes] = field(default_factory=dict)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Seat:
    """One rank's place."""

    def __init__(self, circle: Circle, rank: int) -> None:
        self._circle = circle
        self.rank = rank
        self._turn = 0

    @property
    def size(self) -> int:
        return self._circle.size

    @property
    def signs(self) -> bool:
        return self.rank == 0

    async def gather(self, word: bytes) -> list[bytes]:
        turn, self._turn = self._turn, self._turn + 1
        return await self._circle.hear(turn, self.rank, word)


@dataclass(frozen=True)
class ShareOfState:
    """Every so manieth block of a state is a rank's."""

    state: TrainedState
    rank: int
    ranks: int
    layout: StateLayout = LAYOUT

    @property
    def own(self) -> Sequence[Block]:
        return LAYOUT.blocks[self.rank :: self.ranks]

    def read(self, block: Block, out: Bytes) -> None:
        assert block in self.own
        np.copyto(out, self.state.content()[block.start : block.end])
