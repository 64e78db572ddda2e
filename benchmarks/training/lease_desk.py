"""A dataflow that always has rows at hand: the same ones for every step, published once to a real stream.

It answers the trainer's requests as the dataflow does, and keeps the times that the trainer reports with them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.training.step_data import GROUP_SIZE, POLICY, prompt_tokens
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.requests import Reply, Request, Responder, serve
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import MESSAGE_ID, headers
from trimtab.fabric.wire.lease import (
    BatchLease,
    BatchRequest,
    Episode,
    Group,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
    SampleReference,
    StepTiming,
    StepTotals,
)
from trimtab.fabric.wire.spans import Producer, Span, model_span
from trimtab.fabric.wire.trajectory import Finish, Scored, Trajectory
from trimtab.trainer.batch import Row

_DEADLINE_S = 30.0


class LeaseDesk:
    """`until` is the step that it refuses, as when a job is finished."""

    def __init__(self, bus: Bus, topology: JobTopology, rows: Sequence[Row]) -> None:
        self._bus = bus
        self._topology = topology
        self._trajectories = [_trajectory(row, job=topology.job) for row in rows]
        self._sequences: list[int] = []
        self.until = 0
        self.timings: dict[int, StepTiming] = {}

    async def open(self) -> Responder:
        await declare_job(self._bus, self._topology, deadline_s=_DEADLINE_S)
        subject = self._topology.trajectory_subject(POLICY)
        for one in self._trajectories:
            stored = await publish(
                self._bus, subject, encode(one), message_id=headers(one)[MESSAGE_ID], headers=headers(one)
            )
            self._sequences.append(stored.sequence)
        return await serve(
            self._bus,
            self._topology.batch_subject(POLICY),
            self._answer,
            queue_group="dataflow",
            concurrency=4,
            handler_deadline_s=_DEADLINE_S,
        )

    async def _answer(self, request: Request) -> Reply:
        message = decode(request.payload, BatchRequest, LeaseAck)
        if isinstance(message, LeaseAck):
            return Reply(encode(LeaseAcked(lease_id=message.lease_id, step=message.step)))
        assert isinstance(message, BatchRequest)
        if message.previous is not None:
            self.timings[message.trained_steps - 1] = message.previous
        if message.step >= self.until:
            return Reply(encode(LeaseRefused(refusal=Refusal.FINISHED, message="enough")))
        return Reply(encode(self._lease(message)))

    def _lease(self, request: BatchRequest) -> BatchLease:
        samples, groups = [], []
        for number, (one, sequence) in enumerate(zip(self._trajectories, self._sequences, strict=True)):
            assert isinstance(one.outcome, Scored)
            prompt, answer = (span.length for span in one.spans)
            samples.append(
                SampleReference(
                    sequence=sequence,
                    trajectory_id=one.trajectory_id,
                    group=number // GROUP_SIZE,
                    episode=number % GROUP_SIZE,
                    group_index=one.group_index,
                    reward=one.outcome.reward,
                    prompt_tokens=prompt,
                    response_tokens=answer,
                    trained_tokens=answer,
                    oldest_version=0,
                    newest_version=0,
                )
            )
        for first in range(0, len(samples), GROUP_SIZE):
            episodes = tuple(
                Episode(reward=sample.reward, trained_tokens=sample.trained_tokens)
                for sample in samples[first : first + GROUP_SIZE]
            )
            group_id = self._trajectories[first].group_id
            groups.append(Group(group_id=group_id, prompt_id=f"p{first // GROUP_SIZE}", episodes=episodes))
        trained = sum(sample.trained_tokens for sample in samples)
        tokens = trained + sum(sample.prompt_tokens for sample in samples)
        return BatchLease(
            lease_id=f"{POLICY}.{request.step}.0",
            job=self._topology.job,
            policy=POLICY,
            step=request.step,
            rank=request.rank,
            world_size=request.world_size,
            stream=self._topology.trajectories.name,
            groups=tuple(groups),
            samples=tuple(samples),
            totals=StepTotals(
                samples=len(samples),
                groups=len(groups),
                episodes=len(samples),
                tokens=tokens,
                trained_tokens=trained,
            ),
            issued_at=1.0,
            expires_at=2.0,
        )


def _trajectory(row: Row, *, job: str) -> Trajectory:
    """Its reward is the row's advantage: normalised once more within its group it is the same."""
    group, place = divmod(row.key, GROUP_SIZE)
    prompt = prompt_tokens(row)
    return Trajectory(
        trajectory_id=f"t{group}.{POLICY}.{place}.0",
        job=job,
        policy=POLICY,
        role=POLICY,
        task_id=f"t{group}",
        prompt_id=f"p{group}",
        group_id=f"t{group}.{POLICY}",
        group_index=place,
        group_size=GROUP_SIZE,
        outcome=Scored(reward=float(row.advantages[-1]), finish=Finish.STOP),
        token_ids=row.token_ids,
        logprobs=row.logprobs[prompt:].astype(np.float32),
        spans=(Span(prompt, Producer.PROMPT), model_span(row.trained_tokens, version=0)),
        worker="w",
        pool="p",
        engine="builtin",
        started_at=1.0,
        finished_at=2.0,
    )
