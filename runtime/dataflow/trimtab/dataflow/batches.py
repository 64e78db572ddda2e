"""Answers the ranks: leases of rows for a step, and acknowledgements of steps that are durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from trimtab.dataflow.leases import lease, step_totals
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    PolicyFinished,
    StepDurable,
    StepGranted,
    StepTimed,
    StepTrained,
    TrainerAttempt,
)
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
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


class BatchServer:
    """One server for all policies. A request says which steps are trained, and may carry the times of the newest."""

    def __init__(
        self,
        books: Bookkeeper,
        *,
        stream: str,
        clock: Callable[[], float],
        max_steps: int | None,
        finish: Callable[[Ledger, str], PolicyFinished | None],
        on_grant: Callable[[StepGranted], None],
    ) -> None:
        self._books = books
        self._stream = stream
        self._clock = clock
        self._max_steps = max_steps
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
        clock = asyncio.get_running_loop().time
        end = clock() + min(request.wait_hint, _MAX_WAIT_S)
        noted = False
        while True:
            books = self._books.ledger.trainers.get(request.policy)
            if books is None:
                return _unknown_policy(request.policy)
            refused = _refusal(books, request)
            if refused is not None:
                return await self._sure(refused)
            if not noted:
                noted = True
                await self._note(request)
                continue  # while it was written down, a newer attempt may have come
            granted = self._granted(books, request)
            if granted is not None:
                return granted
            # It asks for the step that is due. Steps granted before are served again even when the policy is finished:
            # a trainer that crashed on its last steps still has to do them.
            if books.finished is None:
                await self._books.record(lambda ledger: self._finish(ledger, request.policy))
            if books.finished is not None:
                return LeaseRefused(refusal=Refusal.FINISHED, message=f"no more batches: {books.finished}")
            if await self._decided(request):
                continue
            left = end - clock()
            if left <= 0:
                return BatchNotReady(
                    policy=request.policy, step=request.step, reason="too-few-groups", retry_after=_RETRY_AFTER_S
                )
            await self._books.changed(timeout_s=left)

    def _granted(self, books: TrainerBooks, request: BatchRequest) -> BatchLease | LeaseRefused | None:
        portions = books.granted.get(request.step, ())
        whole = request.step < books.next_step
        if request.chunk < len(portions):
            last = whole and request.chunk == len(portions) - 1
            return lease(
                portions[request.chunk],
                request,
                totals=step_totals(books.allotments(request.step)) if last else None,
                stream=self._stream,
                now=self._clock(),
                expires_s=_LEASE_S,
            )
        if whole:
            message = f"step {request.step} has {len(portions)} portions, asked for was number {request.chunk}"
            return LeaseRefused(refusal=Refusal.UNKNOWN_LEASE, message=message)
        return None

    async def _decided(self, request: BatchRequest) -> bool:
        """Whether something was recorded towards the batch of this step, by us or by a rank that was first."""
        record = await self._books.record(lambda ledger: self._propose(ledger, request))
        if isinstance(record, StepGranted) and record.last:
            self._on_grant(record)
        return record is not None or not _is_due(self._books.ledger.trainers[request.policy], request)

    def _propose(self, ledger: Ledger, request: BatchRequest) -> StepGranted | GroupsDropped | None:
        beyond = self._max_steps is not None and request.step >= self._max_steps
        if beyond or not _is_due(ledger.trainers[request.policy], request):
            return None
        return ledger.propose(request.policy, now=self._clock(), portions=request.portions)

    async def _note(self, request: BatchRequest) -> None:
        """What the request itself says: who asks, and which steps are trained."""
        await self._books.record(lambda ledger: _attempt(ledger.trainers[request.policy], request))
        await self._books.record(lambda ledger: _trained(ledger.trainers[request.policy], request, now=self._clock()))

    async def _sure(self, refused: LeaseRefused) -> LeaseRefused:
        """Before saying that a step does not exist, make sure that no other process has granted it."""
        if refused.refusal in (Refusal.STEP_AHEAD, Refusal.UNKNOWN_LEASE):
            await self._books.confirm()
        return refused

    async def _acknowledge(self, ack: LeaseAck) -> LeaseAcked | LeaseRefused:
        books = self._books.ledger.trainers.get(ack.policy)
        if books is None:
            return _unknown_policy(ack.policy)
        if ack.attempt < books.attempt:
            return _superseded(ack.attempt, books)
        if ack.step >= books.next_step:
            message = f"step {ack.step} was not granted yet"
            return await self._sure(LeaseRefused(refusal=Refusal.UNKNOWN_LEASE, message=message))
        await self._books.record(
            lambda _: None if ack.step < books.durable_steps else StepDurable(policy=ack.policy, step=ack.step)
        )
        return LeaseAcked(lease_id=ack.lease_id, step=ack.step)


def _is_due(books: TrainerBooks, request: BatchRequest) -> bool:
    """Whether this is the next portion to be granted."""
    return books.next_step == request.step and len(books.granted.get(request.step, ())) == request.chunk


def _attempt(books: TrainerBooks, request: BatchRequest) -> TrainerAttempt | None:
    if request.attempt <= books.attempt:
        return None
    return TrainerAttempt(policy=books.policy, attempt=request.attempt, world_size=request.world_size)


def _trained(books: TrainerBooks, request: BatchRequest, *, now: float) -> StepTimed | StepTrained | None:
    """With times, of each rank once. Without, as from a trainer that has just resumed, when it is news."""
    step = request.trained_steps - 1
    if step < 0:
        return None
    if request.previous is None:
        return StepTrained(policy=books.policy, step=step) if books.trained_steps <= step else None
    if not books.wants_time(step, rank=request.rank):
        return None
    return StepTimed(
        policy=books.policy,
        step=step,
        rank=request.rank,
        wait_seconds=request.previous.wait_seconds,
        step_seconds=request.previous.step_seconds,
        at=now,
    )


def _refusal(books: TrainerBooks, request: BatchRequest) -> LeaseRefused | None:
    if request.attempt < books.attempt:
        return _superseded(request.attempt, books)
    if request.attempt == books.attempt and request.world_size != books.world_size:
        message = f"attempt {books.attempt} has {books.world_size} ranks, not {request.world_size}"
        return LeaseRefused(refusal=Refusal.WORLD_SIZE, message=message)
    if request.step < books.durable_steps:
        message = f"step {request.step} is durable: resume from the newest checkpoint"
        return LeaseRefused(refusal=Refusal.STEP_CONSUMED, message=message, next_step=books.durable_steps)
    if request.step > books.next_step:
        message = f"step {request.step} asked for where {books.next_step} is due"
        return LeaseRefused(refusal=Refusal.STEP_AHEAD, message=message, next_step=books.next_step)
    return None


def _unknown_policy(policy: str) -> LeaseRefused:
    return LeaseRefused(refusal=Refusal.UNKNOWN_POLICY, message=f"the job has no policy {policy!r}")


def _superseded(attempt: int, books: TrainerBooks) -> LeaseRefused:
    return LeaseRefused(refusal=Refusal.SUPERSEDED, message=f"attempt {attempt} was superseded by {books.attempt}")
