"""Answers the ranks: leases of rows for a step, and acknowledgements of steps that are durable."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from weakref import WeakValueDictionary

from trimtab.dataflow.anchoring import Anchoring
from trimtab.dataflow.dealt_leases import DealtLeases
from trimtab.dataflow.leases import step_totals
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import (
    GroupsDropped,
    PolicyFinished,
    StepDurable,
    StepGranted,
    StepTrained,
    TrainerAttempt,
)
from trimtab.dataflow.ledger.trainer_books import TrainerBooks
from trimtab.dataflow.reported_times import ReportedTimes
from trimtab.fabric.bus.requests import Reply, Request
from trimtab.fabric.wire.best_versions import BestVersions, BestVersionsRequest
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.lease import (
    AWAITS_EVALUATION,
    BatchNotReady,
    BatchRequest,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
)

_MAX_WAIT_S = 20.0
_RETRY_AFTER_S = 0.05
_STALLED_RETRY_S = 2.0
_TOO_FEW = "too-few-groups"


class BatchServer:
    """One server for all policies. A request says which steps are trained, and may carry the times of the newest."""

    def __init__(
        self,
        books: Bookkeeper,
        *,
        stream: str,
        columns_stream: str | None = None,
        clock: Callable[[], float],
        max_steps: int | None,
        finish: Callable[[Ledger, str], PolicyFinished | None],
        held: Callable[[Ledger, str], bool] = lambda *_: False,
        on_grant: Callable[[StepGranted], None],
        anchoring: Anchoring | None = None,
    ) -> None:
        """`held` says whether a policy is granted nothing for now, because a round of evaluation comes first. Without
        `anchoring` no proof is believed."""
        self._books = books
        self._anchoring = anchoring
        self._clock = clock
        self._dealt = DealtLeases(stream=stream, columns_stream=columns_stream, clock=clock)
        self._times: defaultdict[str, ReportedTimes] = defaultdict(ReportedTimes)
        self._turns: WeakValueDictionary[tuple[str, int, int], asyncio.Lock] = WeakValueDictionary()
        """By policy, step and chunk: of the ranks that wait for a portion one looks at every change in the books."""
        self._max_steps = max_steps
        self._finish = finish
        self._held = held
        self._on_grant = on_grant

    async def answer(self, request: Request) -> Reply:
        try:
            message = decode(request.payload, BatchRequest, LeaseAck, CheckpointProof, BestVersionsRequest)
        except WireError as error:
            return Reply(encode(LeaseRefused(refusal=Refusal.MALFORMED, message=str(error))))
        if isinstance(message, LeaseAck):
            return Reply(encode(await self._acknowledge(message)))
        if isinstance(message, CheckpointProof):
            return Reply(encode(await self._prove(message)))
        if isinstance(message, BestVersionsRequest):
            return Reply(encode(self._best(message)))
        assert isinstance(message, BatchRequest)
        answer = await self._answer(message)
        return Reply(answer if isinstance(answer, bytes) else encode(answer))

    async def _answer(self, request: BatchRequest) -> bytes | BatchNotReady | LeaseRefused:
        """A lease comes encoded."""
        end = asyncio.get_running_loop().time() + min(request.wait_hint, _MAX_WAIT_S)
        books = self._books.ledger.trainers.get(request.policy)
        if books is None:
            return _unknown_policy(request.policy)
        if self._books.stalled_since is not None:
            # What there is to say may depend on the record that waits. Without this, requests would pile up behind it.
            return _not_ready(request, reason="storage-full", retry_after=_STALLED_RETRY_S)
        refused = _refusal(books, request)
        if refused is not None:
            return await self._sure(refused)
        await self._note(request)
        answer = await self._known(books, request)
        if answer is not None:
            return answer
        place = (request.policy, request.step, request.chunk)
        turn = self._turns.setdefault(place, asyncio.Lock())
        try:
            async with asyncio.timeout_at(end):
                await turn.acquire()
        except TimeoutError:
            return _not_ready(request)
        try:
            return await self._due(books, request, end=end)
        finally:
            turn.release()

    async def _due(
        self, books: TrainerBooks, request: BatchRequest, *, end: float
    ) -> bytes | BatchNotReady | LeaseRefused:
        """The answer once there is one, or at the end of the time."""
        clock = asyncio.get_running_loop().time
        while True:
            answer = await self._known(books, request)
            if answer is not None:
                return answer
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
                held = self._held(self._books.ledger, request.policy)
                return _not_ready(request, reason=AWAITS_EVALUATION if held else _TOO_FEW)
            await self._books.changed(timeout_s=left)

    async def _known(self, books: TrainerBooks, request: BatchRequest) -> bytes | LeaseRefused | None:
        """What the books say already. While something was written down, a newer attempt may have come."""
        refused = _refusal(books, request)
        return self._granted(books, request) if refused is None else await self._sure(refused)

    def _granted(self, books: TrainerBooks, request: BatchRequest) -> bytes | LeaseRefused | None:
        portions = books.granted.get(request.step, ())
        whole = request.step < books.next_step
        if request.chunk < len(portions):
            last = whole and request.chunk == len(portions) - 1
            return self._dealt.answer(
                request,
                portions[request.chunk],
                totals=lambda: step_totals(books.allotments(request.step)) if last else None,
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
        if beyond or not _is_due(ledger.trainers[request.policy], request) or self._held(ledger, request.policy):
            return None
        return ledger.propose(request.policy, now=self._clock(), portions=request.portions)

    async def _note(self, request: BatchRequest) -> None:
        """What the request itself says: who asks, and which steps are trained. Of a thousand ranks that say the same,
        one has it written down.
        """
        books = self._books.ledger.trainers[request.policy]
        if _attempt(books, request) is not None:
            await self._books.record(lambda _: _attempt(books, request))
        times = self._times[request.policy]
        times.hear(request, books)
        while times.due(books, now=self._clock()) is not None:
            await self._books.record(lambda _: times.due(books, now=self._clock()))
        if _trained(books, request) is not None:
            await self._books.record(lambda _: _trained(books, request))

    async def _sure(self, refused: LeaseRefused) -> LeaseRefused:
        """Before saying that a step does not exist, make sure that no other process has granted it."""
        if refused.refusal in (Refusal.STEP_AHEAD, Refusal.UNKNOWN_LEASE):
            await self._books.confirm()
        return refused

    async def _prove(self, proof: CheckpointProof) -> LedgerAnchored | LeaseRefused:
        if self._anchoring is None:
            return LeaseRefused(refusal=Refusal.UNPROVEN, message="no proof is believed here")
        answer = await self._anchoring.answer(proof)
        self._times.pop(proof.policy, None)
        return answer

    def _best(self, request: BestVersionsRequest) -> BestVersions:
        books = self._books.ledger.evaluation
        running = books.running
        return BestVersions(
            policy=request.policy,
            best=tuple(best for (policy, _), best in books.best.items() if policy == request.policy),
            evaluating=None if running is None else running.versions.get(request.policy),
        )

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
        self._dealt.forget(ack.policy, before_step=books.durable_steps)
        return LeaseAcked(lease_id=ack.lease_id, step=ack.step)


def _is_due(books: TrainerBooks, request: BatchRequest) -> bool:
    """Whether this is the next portion to be granted."""
    return books.next_step == request.step and len(books.granted.get(request.step, ())) == request.chunk


def _attempt(books: TrainerBooks, request: BatchRequest) -> TrainerAttempt | None:
    if request.attempt <= books.attempt:
        return None
    return TrainerAttempt(policy=books.policy, attempt=request.attempt, world_size=request.world_size)


def _trained(books: TrainerBooks, request: BatchRequest) -> StepTrained | None:
    step = request.trained_steps - 1
    return StepTrained(policy=books.policy, step=step) if books.trained_steps <= step else None


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
    if request.step == books.next_step and request.chunk > len(portions := books.granted.get(request.step, ())):
        message = f"portion {request.chunk} of step {request.step} asked for where {len(portions)} is due"
        return LeaseRefused(refusal=Refusal.UNKNOWN_LEASE, message=message)
    return None


def _not_ready(request: BatchRequest, *, reason: str = _TOO_FEW, retry_after: float = _RETRY_AFTER_S) -> BatchNotReady:
    return BatchNotReady(policy=request.policy, step=request.step, reason=reason, retry_after=retry_after)


def _unknown_policy(policy: str) -> LeaseRefused:
    return LeaseRefused(refusal=Refusal.UNKNOWN_POLICY, message=f"the job has no policy {policy!r}")


def _superseded(attempt: int, books: TrainerBooks) -> LeaseRefused:
    return LeaseRefused(refusal=Refusal.SUPERSEDED, message=f"attempt {attempt} was superseded by {books.attempt}")
