"""The other way to feed ranks: one controller reads all rows of a step, decodes them, and sends each rank its own.

It is what a trainer with a single controller does, on the same stream and the same wire, without anything durable.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from benchmarks.trajectories.payloads import GROUP_SIZE
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.requests import Reply, Request, Responder, serve
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.trajectory import Trajectory

_DEADLINE_S = 120.0
_PIECE_BYTES = 512 << 10
"""Of rows in one answer: the server takes messages of 1 MiB."""
_CONCURRENCY = 4096
_BACKLOG = 4096


def piece_subject(topology: JobTopology) -> str:
    return f"controller.{topology.job}"


class Piece(msgspec.Struct, array_like=True):
    frames: list[bytes]
    last: bool


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Forget the step before, and deal these rows to so many ranks when the first of them asks."""

    topology: JobTopology
    first_sequence: int
    count: int
    ranks: int


class Controller:
    """What the process keeps between questions."""

    def __init__(self) -> None:
        self._responders: list[Responder] = []
        self._dealing: asyncio.Lock | None = None
        self._deal: Deal | None = None
        self._hands: list[list[Trajectory]] = []

    async def serve(self, buses: list[Bus], question: Deal) -> None:
        bus = buses[0]
        if self._dealing is None:
            self._dealing = asyncio.Lock()
            subject = piece_subject(question.topology)

            async def piece(asked: Request) -> Reply:
                return await self._piece(bus, asked)

            for name, handler in ((subject, piece), (f"{subject}.echo", _echo)):
                responder = await serve(
                    bus,
                    name,
                    handler,
                    queue_group="controller",
                    concurrency=_CONCURRENCY,
                    backlog=_BACKLOG,
                    handler_deadline_s=_DEADLINE_S,
                )
                self._responders.append(responder)
        self._deal, self._hands = question, []

    async def _piece(self, bus: Bus, asked: Request) -> Reply:
        rank, begin = msgspec.msgpack.decode(asked.payload, type=tuple[int, int])
        assert self._dealing is not None
        async with self._dealing:
            if not self._hands:
                self._hands = await self._dealt(bus)
        hand = self._hands[rank]
        frames: list[bytes] = []
        size = 0
        while begin + len(frames) < len(hand) and size < _PIECE_BYTES:
            frames.append(encode(hand[begin + len(frames)]))
            size += len(frames[-1])
        return Reply(msgspec.msgpack.encode(Piece(frames, begin + len(frames) == len(hand))))

    async def _dealt(self, bus: Bus) -> list[list[Trajectory]]:
        deal = self._deal
        assert deal is not None, "a rank asks before the controller has a step"
        sequences = range(deal.first_sequence, deal.first_sequence + deal.count)
        stored = await get_messages(bus, deal.topology.trajectories.name, sequences, deadline_s=_DEADLINE_S)
        rows = [decode(message.payload, Trajectory) for message in stored.complete().values()]
        assert len(rows) % GROUP_SIZE == 0
        # Longest first, back and forth, as our ranks get theirs.
        rows.sort(key=lambda row: (-len(row.token_ids), row.trajectory_id))
        hands: list[list[Trajectory]] = [[] for _ in range(deal.ranks)]
        for number, row in enumerate(rows):
            round_, place = divmod(number, deal.ranks)
            hands[place if round_ % 2 == 0 else deal.ranks - 1 - place].append(row)
        return hands


async def _echo(asked: Request) -> Reply:
    return Reply(b"x" * int(asked.payload))
