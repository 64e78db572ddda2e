"""The side that reads: ranks with the trainer's own batch stream, or plain pulls of the same messages."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.trajectories.payloads import POLICY, number_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.requests import request
from trimtab.fabric.bus.streams import declare_stream, delete_stream
from trimtab.fabric.bus.topology import JobTopology, StreamSpec
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.lease import BatchLease, BatchNotReady, BatchRequest, LeaseRefused, StepTiming
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch import RowEpisode, StepPortion
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained
from trimtab.trainer.leased_rows import row_of

_API_DEADLINE_S = 10.0
_CONSUMER = "c"
_PULL = 1024
_PULL_WAIT_S = 10.0
_PULL_BYTES = 32 << 20
_ASK_WAIT_S = 10.0
_ASK_DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Train:
    """Get the rows of these steps, and acknowledge each step when all ranks have theirs."""

    topology: JobTopology
    steps: range
    row_numbers: range


@dataclass(frozen=True, kw_only=True)
class Lease:
    """Get leases of these steps and acknowledge them, without reading a row: work for the service alone."""

    topology: JobTopology
    steps: range


@dataclass(frozen=True, kw_only=True)
class Open:
    """Make a stream like that of a job's trajectories, with a consumer to pull from."""

    stream: str
    replicas: int = 1


@dataclass(frozen=True, kw_only=True)
class Pull:
    """Read so many messages of such a stream as fast as JetStream gives them. Decoded they are rows, as in a batch;
    undecoded they are bytes, which is the most that the stream itself can do.
    """

    stream: str
    count: int
    decoded: bool


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Delete such a stream."""

    stream: str


@dataclass(frozen=True, kw_only=True)
class Received:
    ended: float
    at: npt.NDArray[np.float64]
    """When the batch of each row was in the rank, by its place in the range asked for; empty unless trained."""


async def serve(buses: list[Bus], question: Train | Lease | Open | Pull | Drop) -> Received:
    """One rank for each connection; what is not training is for the first."""
    match question:
        case Train():
            return await _train(buses, question)
        case Lease():
            await _lease(buses[0], question)
        case Open():
            await _open(buses[0], question)
        case Pull():
            await _pull(buses[0], question)
        case Drop():
            await delete_stream(buses[0], question.stream, deadline_s=_API_DEADLINE_S)
    return Received(ended=time.monotonic(), at=np.zeros(0))


async def _train(buses: list[Bus], question: Train) -> Received:
    topology = question.topology
    streams = [
        BatchStream(
            bus,
            topology.batch_subject(POLICY),
            RankIdentity(job=topology.job, policy=POLICY, rank=rank, world_size=len(buses), attempt=0),
            advantages=AdvantageRule(longest_answer=1024),
            clock=time.time,
        )
        for rank, bus in enumerate(buses)
    ]
    feeds = [_Feed(stream, last=question.steps[-1]) for stream in streams]
    at = np.zeros(len(question.row_numbers))
    timing: StepTiming | None = None
    for step in question.steps:
        began = time.monotonic()
        # Ranks meet in every step, as in the sum of their gradients.
        trained = Trained(steps=step, previous=timing)
        batches = await asyncio.gather(*(feed.step(trained) for feed in feeds))
        ended = time.monotonic()
        for portion in (portion for batch in batches for portion in batch):
            for row in portion.rows:
                at[number_of(row.token_ids) - question.row_numbers.start] = ended
        await streams[0].acknowledge(step, lease_id=batches[0][0].lease_id, weight_version=step + 1)
        timing = StepTiming(wait_seconds=ended - began, step_seconds=time.monotonic() - began)
    if not at.all():
        raise RuntimeError(f"{np.count_nonzero(at == 0)} rows of {question.row_numbers} did not come in their steps")
    return Received(ended=ended, at=at)


class _Feed:
    """One portion is always asked for ahead of need, as the trainer's loop does."""

    def __init__(self, stream: BatchStream, *, last: int) -> None:
        self._stream = stream
        self._last = last
        self._ahead: asyncio.Task[StepPortion | None] | None = None

    async def step(self, trained: Trained) -> list[StepPortion]:
        """All portions of a step."""
        portions: list[StepPortion] = []
        while not portions or portions[-1].totals is None:
            place = PortionId(step=trained.steps, chunk=len(portions))
            portion = await (self._ahead or self._ask(place, trained))
            assert portion is not None, "the job has no last step"
            portions.append(portion)
            following = PortionId(step=place.step, chunk=place.chunk + 1) if portion.totals is None else None
            if following is None and place.step < self._last:
                following = PortionId(step=place.step + 1)
            self._ahead = None if following is None else self._ask(following, trained)
        return portions

    def _ask(self, place: PortionId, trained: Trained) -> asyncio.Task[StepPortion | None]:
        return asyncio.create_task(self._stream.portion(place, trained=trained, stopping=lambda: False))


async def _lease(bus: Bus, question: Lease) -> None:
    topology = question.topology
    subject = topology.batch_subject(POLICY)
    stream = BatchStream(
        bus,
        subject,
        RankIdentity(job=topology.job, policy=POLICY, rank=0, world_size=1, attempt=0),
        advantages=AdvantageRule(longest_answer=1024),
        clock=time.time,
    )
    for step in question.steps:
        asked = BatchRequest(
            job=topology.job,
            policy=POLICY,
            step=step,
            rank=0,
            world_size=1,
            previous=StepTiming(wait_seconds=0.0, step_seconds=0.0) if step else None,
            wait_hint=_ASK_WAIT_S,
        )
        reply = await request(bus, subject, encode(asked), deadline_s=_ASK_DEADLINE_S)
        answer = decode(reply.payload, BatchLease, BatchNotReady, LeaseRefused)
        if not isinstance(answer, BatchLease):
            raise TypeError(f"step {step}: expected a lease of rows that are all queued, got {answer}")
        await stream.acknowledge(step, lease_id=answer.lease_id, weight_version=step + 1)


async def _open(bus: Bus, question: Open) -> None:
    stream = question.stream
    spec = StreamSpec(name=stream, subjects=(stream,), allow_direct=True, replicas=question.replicas)
    await declare_stream(bus, spec, deadline_s=_API_DEADLINE_S)
    # Nothing is acknowledged, as nothing is when rows are read by sequence.
    config = {"name": _CONSUMER, "ack_policy": "none", "deliver_policy": "all", "mem_storage": True, "num_replicas": 1}
    body = {"stream_name": stream, "config": config}
    await api_call(bus, f"CONSUMER.CREATE.{stream}.{_CONSUMER}", body, deadline_s=_API_DEADLINE_S)


async def _pull(bus: Bus, question: Pull) -> None:
    """Pulls in large batches. Batches of 64 and 256 and a push consumer differed by less than runs of the same do."""
    left = question.count
    async with await Puller.open(bus, stream=question.stream, consumer=_CONSUMER) as puller:
        while left:
            messages = await puller.fetch(batch=min(left, _PULL), wait_s=_PULL_WAIT_S, max_bytes=_PULL_BYTES)
            if not messages:
                raise TimeoutError(
                    f"{question.stream} gave nothing for {_PULL_WAIT_S} s, {left} messages before its end"
                )
            left -= len(messages)
            if question.decoded:
                for message in messages:
                    trajectory = decode(message.payload, Trajectory)
                    trained = trajectory.trained_tokens
                    row_of(
                        trajectory,
                        key=0,
                        episode=RowEpisode(group=trajectory.group_id, index=0, rows=1, trained_tokens=trained),
                        advantages=np.zeros(trained, dtype=np.float32),
                    )
