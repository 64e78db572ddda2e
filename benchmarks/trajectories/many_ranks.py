"""Very many ranks in one process, each with a connection of its own. What reaches them is timed as bytes at hand,
because decoding it is the work of as many machines.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from benchmarks.trajectories.controller import Piece, piece_subject
from benchmarks.trajectories.payloads import POLICY
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.requests import request
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, LeaseAck, LeaseAcked, StepTiming
from trimtab.fabric.wire.trajectory import Trajectory

_DEADLINE_S = 120.0
_WAIT_S = 20.0
_READERS = 64
"""Ranks that read at once: one process cannot take what a thousand of them ask for in the time that each gives it."""
_PREVIOUS = StepTiming(wait_seconds=0.1, step_seconds=1.0)


@dataclass(frozen=True, kw_only=True)
class Step:
    """One of the job's steps, for so many ranks."""

    topology: JobTopology
    step: int
    ranks: int
    attempt: int
    """Another one for each number of ranks: a trainer has one for life."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """All ranks get their leases."""

    of: Step


@dataclass(frozen=True, kw_only=True)
class Read:
    """All ranks read the rows of the leases they have, by sequence."""

    of: Step


@dataclass(frozen=True, kw_only=True)
class Fetch:
    """All ranks get their rows of the step from the controller."""

    of: Step


@dataclass(frozen=True, kw_only=True)
class Echo:
    """All ranks get as many bytes as their leases had, of no meaning: what requests alone take."""

    of: Step


@dataclass(frozen=True, kw_only=True)
class Acknowledge:
    """The step is durable: after this its rows may be deleted."""

    of: Step


@dataclass(frozen=True, kw_only=True)
class Told:
    took_s: float
    """From the first question until all ranks have what they asked for."""
    rows: int
    """Of all ranks together."""
    distinct: int
    """Of those: as many, unless one came to two ranks."""


Question = Lease | Read | Fetch | Echo | Acknowledge


class ManyRanks:
    """What the process keeps between questions."""

    def __init__(self) -> None:
        self._leases: list[BatchLease] = []
        self._replies: list[bytes] = []

    async def serve(self, buses: list[Bus], question: Question) -> Told:
        ranks = buses[: question.of.ranks]
        match question:
            case Lease():
                return await self._lease(ranks, question.of)
            case Read():
                return await self._read(ranks, question.of)
            case Fetch():
                return await self._fetch(ranks, question.of)
            case Echo():
                return await self._echo(ranks, question.of)
            case Acknowledge():
                return await self._acknowledge(ranks, question.of)

    async def _lease(self, ranks: Sequence[Bus], step: Step) -> Told:
        subject = step.topology.batch_subject(POLICY)
        questions = [
            encode(
                BatchRequest(
                    job=step.topology.job,
                    policy=POLICY,
                    step=step.step,
                    rank=rank,
                    world_size=step.ranks,
                    attempt=step.attempt,
                    previous=_PREVIOUS if step.step else None,
                    wait_hint=_WAIT_S,
                )
            )
            for rank in range(step.ranks)
        ]

        async def ask(rank: int, bus: Bus) -> bytes:
            return (await request(bus, subject, questions[rank], deadline_s=_DEADLINE_S)).payload

        took_s, self._replies = await _together(ranks, ask)
        self._leases = [decode(reply, BatchLease) for reply in self._replies]
        return _told(took_s, [sample.trajectory_id for lease in self._leases for sample in lease.samples])

    async def _acknowledge(self, ranks: Sequence[Bus], step: Step) -> Told:
        ack = LeaseAck(
            lease_id=self._leases[0].lease_id,
            job=step.topology.job,
            policy=POLICY,
            step=step.step,
            rank=0,
            world_size=step.ranks,
            attempt=step.attempt,
            weight_version=step.step + 1,
            acked_at=time.time(),
        )
        subject = step.topology.batch_subject(POLICY)

        async def say(rank: int, bus: Bus) -> bytes:
            return (await request(bus, subject, encode(ack), deadline_s=_DEADLINE_S)).payload

        took_s, (reply,) = await _together(ranks[:1], say)
        decode(reply, LeaseAcked)
        return _told(took_s, [])

    async def _read(self, ranks: Sequence[Bus], step: Step) -> Told:
        turn = asyncio.Semaphore(_READERS)

        async def read(rank: int, bus: Bus) -> list[bytes]:
            lease = self._leases[rank]
            sequences = [sample.sequence for sample in lease.samples]
            async with turn:
                stored = (await get_messages(bus, lease.stream, sequences, deadline_s=_DEADLINE_S)).complete()
            return [stored[sequence].payload for sequence in sequences]

        took_s, received = await _together(ranks, read)
        return _told(took_s, _ids(received))

    async def _fetch(self, ranks: Sequence[Bus], step: Step) -> Told:
        subject = piece_subject(step.topology)

        async def fetch(rank: int, bus: Bus) -> list[bytes]:
            frames: list[bytes] = []
            while True:
                question = msgspec.msgpack.encode((rank, len(frames)))
                reply = await request(bus, subject, question, deadline_s=_DEADLINE_S)
                piece = msgspec.msgpack.decode(reply.payload, type=Piece)
                frames += piece.frames
                if piece.last:
                    return frames

        took_s, received = await _together(ranks, fetch)
        return _told(took_s, _ids(received))

    async def _echo(self, ranks: Sequence[Bus], step: Step) -> Told:
        subject = f"{piece_subject(step.topology)}.echo"

        async def ask(rank: int, bus: Bus) -> bytes:
            return (await request(bus, subject, b"%d" % len(self._replies[rank]), deadline_s=_DEADLINE_S)).payload

        took_s, _ = await _together(ranks, ask)
        return _told(took_s, [])


Got = TypeVar("Got", bytes, list[bytes])


async def _together(ranks: Sequence[Bus], work: Callable[[int, Bus], Awaitable[Got]]) -> tuple[float, list[Got]]:
    began = time.monotonic()
    results = await asyncio.gather(*(work(rank, bus) for rank, bus in enumerate(ranks)))
    return time.monotonic() - began, results


def _told(took_s: float, ids: Sequence[str]) -> Told:
    return Told(took_s=took_s, rows=len(ids), distinct=len(set(ids)))


def _ids(received: Sequence[Sequence[bytes]]) -> list[str]:
    return [decode(frame, Trajectory).trajectory_id for frames in received for frame in frames]
