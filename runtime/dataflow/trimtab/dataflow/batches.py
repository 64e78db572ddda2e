"""Answers the ranks: leases of rows for a step, and acknowledgements of steps that are durable."""

from __future__ import annotations

from collections.abc import Callable

from trimtab.dataflow.leases import lease
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger, PolicyBooks
from trimtab.dataflow.ledger.records import Record, StepDurable, StepGranted, StepTimed, TrainerAttempt
from trimtab.fabric.bus.requests import Reply, Request
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.lease import (
    BatchLease,
    BatchNotReady,
    BatchRequest,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
)

_LEASE_S = 3600.0
_MAX_WAIT_S = 20.0
_RETRY_AFTER_S = 0.05


class BatchDesk:
    """One desk for all policies. A request may carry the times of the step before it, which says that it is trained."""

    def __init__(
        self,
        books: Bookkeeper,
        *,
        stream: str,
        clock: Callable[[], float],
        finish: Callable[[Ledger, str], Record | None],
        on_grant: Callable[[StepGranted], None],
    ) -> None:
        self._books = books
        self._stream = stream
        self._clock = clock
        self._finish = finish
        self._on_grant = on_grant

    async def answer(self, request: Request) -> Reply:
        try:
            message = decode(request.payload, BatchRequest, LeaseAck)
        except WireError as error:
            return Reply(encode(LeaseRefused(refusal=Refusal.MALFORMED, message=str(error))))
        if isinstance(message, LeaseAck):
            return Reply(encode(await self._acknowledge(message)))
        assert isinstance(message, BatchRequest)
        return Reply(encode(await self._lease(message)))

    async def _lease(self, request: BatchRequest) -> BatchLease | BatchNotReady | LeaseRefused:
        refused = _refusal(self._books.ledger.policies.get(request.policy), request)
        if refused is not None:
            return refused
        await self._note_attempt(request)
        await self._note_times(request)
        end = self._clock() + min(request.wait_hint, _MAX_WAIT_S)
        while True:
            await self._books.record(lambda ledger: self._finish(ledger, request.policy))
            if self._books.ledger.policies[request.policy].finished is not None:
                return LeaseRefused(refusal=Refusal.FINISHED, message="the policy needs no more batches")
            granted = await self._granted(request)
            if granted is not None:
                return granted
            left = end - self._clock()
            if left <= 0:
                return BatchNotReady(
                    policy=request.policy, step=request.step, reason="too-few-groups", retry_after=_RETRY_AFTER_S
                )
            await self._books.changed(timeout_s=left)

    async def _granted(self, request: BatchRequest) -> BatchLease | None:
        books = self._books.ledger.policies[request.policy]
        if request.step == books.next_step:
            now = self._clock()
            record = await self._books.record(
                # Another rank may have got the step granted while this one waited for its turn.
                lambda ledger: (
                    ledger.propose_grant(request.policy, now=now) if books.next_step == request.step else None
                )
            )
            if isinstance(record, StepGranted):
                self._on_grant(record)
        groups = books.granted.get(request.step)
        if groups is None:
            return None
        return lease(groups, request, stream=self._stream, now=self._clock(), expires_s=_LEASE_S)

    async def _note_attempt(self, request: BatchRequest) -> None:
        await self._books.record(
            lambda ledger: (
                TrainerAttempt(policy=request.policy, attempt=request.attempt)
                if request.attempt > ledger.policies[request.policy].attempt
                else None
            )
        )

    async def _note_times(self, request: BatchRequest) -> None:
        if request.previous is None or request.step == 0:
            return
        times = StepTimed(
            policy=request.policy,
            step=request.step - 1,
            rank=request.rank,
            wait_seconds=request.previous.wait_seconds,
            step_seconds=request.previous.step_seconds,
            at=self._clock(),
        )
        await self._books.record(
            lambda ledger: None if times.rank in ledger.policies[times.policy].times.get(times.step, {}) else times
        )

    async def _acknowledge(self, ack: LeaseAck) -> LeaseAcked | LeaseRefused:
        books = self._books.ledger.policies.get(ack.policy)
        if books is None:
            return LeaseRefused(refusal=Refusal.UNKNOWN_POLICY, message=f"the job has no policy {ack.policy!r}")
        if ack.step >= books.next_step:
            return LeaseRefused(refusal=Refusal.UNKNOWN_LEASE, message=f"step {ack.step} was not granted yet")
        await self._books.record(
            lambda _: None if ack.step < books.durable_steps else StepDurable(policy=ack.policy, step=ack.step)
        )
        return LeaseAcked(lease_id=ack.lease_id, step=ack.step)


def _refusal(books: PolicyBooks | None, request: BatchRequest) -> LeaseRefused | None:
    if books is None:
        return LeaseRefused(refusal=Refusal.UNKNOWN_POLICY, message=f"the job has no policy {request.policy!r}")
    if request.attempt < books.attempt:
        message = f"attempt {request.attempt} was superseded by {books.attempt}"
        return LeaseRefused(refusal=Refusal.SUPERSEDED, message=message)
    if request.step < books.durable_steps:
        message = f"step {request.step} is durable: resume from the newest checkpoint"
        return LeaseRefused(refusal=Refusal.STEP_CONSUMED, message=message, next_step=books.durable_steps)
    if request.step > books.next_step:
        message = f"step {request.step} asked for where {books.next_step} is due"
        return LeaseRefused(refusal=Refusal.STEP_AHEAD, message=message, next_step=books.next_step)
    return None
