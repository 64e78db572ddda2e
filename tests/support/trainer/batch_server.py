"""The dataflow's end of the batch protocol, as a table of answers on a real bus."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tests.support.trainer.samples import trajectory
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.requests import Reply, Request, Responder, serve
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import MESSAGE_ID, headers
from trimtab.fabric.wire.lease import (
    BatchLease,
    BatchNotReady,
    BatchRequest,
    Episode,
    Group,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
    SampleReference,
    StepTotals,
)
from trimtab.fabric.wire.trajectory import Scored, Trajectory

Answer = BatchLease | BatchNotReady | LeaseRefused
NOT_READY = BatchNotReady(policy="solver", step=0, reason="too-few-groups", retry_after=0.01)
GROUP_SIZE = 2


class BatchServer:
    """Serves `steps` steps of one group each, then says that the policy is finished."""

    def __init__(self, bus: Bus, topology: JobTopology, *, steps: int, group_size: int = GROUP_SIZE) -> None:
        self._bus = bus
        self._topology = topology
        self._steps = steps
        self._group_size = group_size
        self.sequences: list[int] = []
        self.requests: list[BatchRequest] = []
        self.acks: list[LeaseAck] = []
        self.before_ack: Callable[[LeaseAck], Awaitable[None]] | None = None
        self.proofs: list[CheckpointProof] = []
        self.on_proof: Callable[[CheckpointProof], LedgerAnchored | LeaseRefused] = lambda proof: LedgerAnchored(
            policy=proof.policy, step=proof.step
        )
        self.instead: Callable[[BatchRequest], Answer | None] = lambda _: None

    async def open(self) -> Responder:
        await declare_job(self._bus, self._topology, deadline_s=60.0)
        for number in range(self._steps * self._group_size):
            one = self._trajectory(number)
            stored = await publish(
                self._bus,
                self._topology.trajectory_subject("solver"),
                encode(one),
                message_id=headers(one)[MESSAGE_ID],
                headers=headers(one),
            )
            self.sequences.append(stored.sequence)
        subject = self._topology.batch_subject("solver")
        return await serve(
            self._bus, subject, self._answer, queue_group="dataflow", concurrency=8, handler_deadline_s=10.0
        )

    async def _answer(self, request: Request) -> Reply:
        message = decode(request.payload, BatchRequest, LeaseAck, CheckpointProof)
        if isinstance(message, CheckpointProof):
            self.proofs.append(message)
            return Reply(encode(self.on_proof(message)))
        if isinstance(message, LeaseAck):
            if self.before_ack is not None:
                await self.before_ack(message)
            self.acks.append(message)
            return Reply(encode(LeaseAcked(lease_id=message.lease_id, step=message.step)))
        assert isinstance(message, BatchRequest)
        self.requests.append(message)
        answer = self.instead(message)
        return Reply(encode(answer if answer is not None else self.lease(message)))

    def lease(self, request: BatchRequest) -> Answer:
        if request.step >= self._steps:
            return LeaseRefused(refusal=Refusal.FINISHED, message="enough")
        size = self._group_size
        numbers = range(request.step * size, (request.step + 1) * size)
        made = [self._trajectory(number) for number in numbers]
        rewards = tuple(one.outcome.reward for one in made if isinstance(one.outcome, Scored))
        mine = [(number, one) for number, one in zip(numbers, made, strict=True)][request.rank :: request.world_size]
        return BatchLease(
            lease_id=f"solver.{request.step}.{request.rank}",
            job=self._topology.job,
            policy="solver",
            step=request.step,
            rank=request.rank,
            world_size=request.world_size,
            stream=self._topology.trajectories.name,
            groups=(
                Group(
                    group_id=made[0].group_id,
                    prompt_id=made[0].prompt_id,
                    episodes=tuple(Episode(reward=reward, trained_tokens=2, truncated=True) for reward in rewards),
                ),
            ),
            samples=tuple(
                SampleReference(
                    sequence=self.sequences[number],
                    trajectory_id=one.trajectory_id,
                    group=0,
                    episode=one.group_index,
                    group_index=one.group_index,
                    reward=rewards[one.group_index],
                    prompt_tokens=4,
                    response_tokens=2,
                    trained_tokens=2,
                    oldest_version=0,
                    newest_version=0,
                )
                for number, one in mine
            ),
            totals=StepTotals(samples=size, groups=1, episodes=size, tokens=6 * size, trained_tokens=2 * size),
            issued_at=1.0,
            expires_at=2.0,
        )

    def _trajectory(self, number: int) -> Trajectory:
        return trajectory(number, job=self._topology.job, group_size=self._group_size)
