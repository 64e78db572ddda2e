"""The rows of each step: leases from the dataflow, rows straight from the stream, fetched ahead of the computation."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import StoredMessage, get_in_pieces, get_messages
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable, RemoteError
from trimtab.fabric.bus.requests import Reply, request
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable
from trimtab.fabric.row_claims import ClaimUnusable, RowClaims
from trimtab.fabric.wire.best_versions import BestVersions, BestVersionsRequest
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.column import parse_column_headers
from trimtab.fabric.wire.envelope import decode, encode, kind_of
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.lease import (
    AWAITS_EVALUATION,
    BatchLease,
    BatchNotReady,
    BatchRequest,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    Refusal,
    SampleReference,
    StepTiming,
)
from trimtab.fabric.wire.message import Message
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.background import Background
from trimtab.trainer.batch import Row, RowLimits, StepPortion
from trimtab.trainer.leased_columns import LeasedColumns
from trimtab.trainer.leased_rows import LeasedRows, RowUnusable

_log = structlog.get_logger(__name__)
_WAIT_HINT_S = 2.0
_ASK_AGAIN_S = _WAIT_HINT_S + 0.5
"""A dataflow that dies answers nothing, and the next one does not know who had asked: so long a rank waits in vain."""
_REQUEST_DEADLINE_S = 15.0
_ROWS_DEADLINE_S = 120.0
_BACKOFF = FullJitter(base_s=0.2, cap_s=2.0)
_RETRY_AT_LEAST_S = 0.02
_CLAIMS_AT_ONCE = 4
# The dataflow, the broker or the store may be restarting.
_AWAY = (BusTimeout, BusUnavailable, RemoteError, StoreTimeout, StoreUnavailable)
# A rank that would wait begins with an eighth of the step; when all of it is there it comes in one.
_PORTIONS = 8
_LOOK_UP_S = 0.2


class StepRefused(RuntimeError):
    """The dataflow will never grant this step."""

    def __init__(self, refused: LeaseRefused) -> None:
        super().__init__(f"{refused.refusal}: {refused.message}")
        self.refusal = refused.refusal
        self.next_step = refused.next_step


@dataclass(frozen=True, kw_only=True)
class PortionId:
    """A portion of a step."""

    step: int
    chunk: int = 0


@dataclass(frozen=True, kw_only=True)
class Trained:
    """How far the trainer is: the steps in its weights, and the times of the newest."""

    steps: int
    previous: StepTiming | None = None


@dataclass(frozen=True, kw_only=True)
class RankIdentity:
    """Who asks."""

    job: str
    policy: str
    rank: int
    world_size: int
    attempt: int


class BatchStream:
    """What any trainer needs, ours or not: `portion` for the rows of a step, `acknowledge` when it is durable."""

    def __init__(
        self,
        bus: Bus,
        subject: str,
        identity: RankIdentity,
        *,
        advantages: AdvantageRule,
        clock: Callable[[], float],
        claims: RowClaims | None = None,
        limits: RowLimits | None = None,
        columns_by_rows: frozenset[str] = frozenset(),
        on_set_aside: Callable[[], None] = lambda: None,
        on_rows: Callable[[BatchLease, Mapping[int, bytes]], None] = lambda _lease, _payloads: None,
    ) -> None:
        """Rows beyond the limits, or that cannot be read, or whose columns cannot be, are set aside: nothing is trained
        on them. Without `claims` rows that were too large for a message are among these. `columns_by_rows` are the
        stages that may say one thing of a whole row or turn. `on_rows` is told every lease with the frames of its
        rows by sequence, those in object storage included."""
        self._bus = bus
        self._subject = subject
        self._identity = identity
        self._advantages = advantages
        self._clock = clock
        self._claims = claims
        self._limits = limits
        self._columns_by_rows = columns_by_rows
        self._on_set_aside = on_set_aside
        self._on_rows = on_rows

    async def portion(
        self, portion_id: PortionId, *, trained: Trained, stopping: Callable[[], bool]
    ) -> StepPortion | None:
        """This rank's rows once there are enough; None when the policy is finished or we should stop."""
        failures = 0
        evaluated_s = 0.0
        clock = asyncio.get_running_loop().time
        while not stopping():
            asked = clock()
            try:
                answer = await self._ask(portion_id, trained=trained)
                if isinstance(answer, BatchLease):
                    return replace(await self._rows(answer), evaluated_s=evaluated_s)
            except _AWAY as error:
                # The dataflow knows the step by heart, so asking again is all there is to do.
                delay = _BACKOFF.delay_s(failures)
                failures += 1
                _log.warning("batch_request_repeated", step=portion_id.step, error=str(error), delay_s=delay)
                await asyncio.sleep(delay)
                continue
            failures = 0
            if isinstance(answer, LeaseRefused):
                if answer.refusal is Refusal.FINISHED:
                    return None
                raise StepRefused(answer)
            await asyncio.sleep(max(answer.retry_after, _RETRY_AT_LEAST_S))
            if answer.reason == AWAITS_EVALUATION:
                evaluated_s += clock() - asked
        return None

    async def objection(self, step: int, *, stopping: Callable[[], bool]) -> LeaseRefused | None:
        """Why a trainer that resumes at this step is not given it: it is durable already, or more than the dataflow
        knows of. None where nothing is in the way. Waits for a dataflow that is away."""
        question = self._question(PortionId(step=step), trained=Trained(steps=step), wait_s=0.0)
        answer = await self._patiently(question, BatchLease, BatchNotReady, LeaseRefused, stopping=stopping)
        stands_apart = (Refusal.STEP_CONSUMED, Refusal.STEP_AHEAD)
        return answer if isinstance(answer, LeaseRefused) and answer.refusal in stands_apart else None

    async def prove(self, step: int, sealed: bytes, *, stopping: Callable[[], bool]) -> LeaseRefused | None:
        """Show the dataflow that this step is the one to go on with; why it does not believe it. Waits for one that is
        away."""
        identity = self._identity
        claim = CheckpointProof(
            job=identity.job,
            policy=identity.policy,
            step=step,
            attempt=identity.attempt,
            world_size=identity.world_size,
            sealed=sealed,
        )
        answer = await self._patiently(claim, LedgerAnchored, LeaseRefused, stopping=stopping)
        return answer if isinstance(answer, LeaseRefused) else None

    async def best_versions(self) -> BestVersions | None:
        """Which did best on held-out prompts; None of a dataflow that does not say. Raises BusError."""
        question = BestVersionsRequest(job=self._identity.job, policy=self._identity.policy)
        reply = await self._asked(encode(question))
        answer = decode(reply.payload, BestVersions, LeaseRefused)
        return answer if isinstance(answer, BestVersions) else None

    async def _patiently(
        self, question: Message, *answers: type[Message], stopping: Callable[[], bool]
    ) -> Message | None:
        """Asked again while the dataflow is away; None when we should stop."""
        failures = 0
        while not stopping():
            try:
                reply = await self._asked(encode(question))
                return decode(reply.payload, *answers)
            except (BusTimeout, BusUnavailable, RemoteError) as error:
                delay = _BACKOFF.delay_s(failures)
                failures += 1
                _log.warning("dataflow_not_asked", error=str(error), delay_s=delay)
                await asyncio.sleep(delay)
        return None

    async def _ask(
        self, portion_id: PortionId, *, trained: Trained, wait_s: float = _WAIT_HINT_S
    ) -> BatchLease | BatchNotReady | LeaseRefused:
        question = self._question(portion_id, trained=trained, wait_s=wait_s)
        reply = await self._asked(encode(question))
        answer = decode(reply.payload, BatchLease, BatchNotReady, LeaseRefused)
        assert isinstance(answer, BatchLease | BatchNotReady | LeaseRefused)
        return answer

    async def _asked(self, question: bytes) -> Reply:
        """The dataflow may hear everything that a rank says twice."""
        return await request(
            self._bus, self._subject, question, deadline_s=_REQUEST_DEADLINE_S, repeat_every_s=_ASK_AGAIN_S
        )

    def _question(self, portion_id: PortionId, *, trained: Trained, wait_s: float) -> BatchRequest:
        identity = self._identity
        return BatchRequest(
            job=identity.job,
            policy=identity.policy,
            step=portion_id.step,
            chunk=portion_id.chunk,
            portions=_PORTIONS,
            rank=identity.rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            trained=trained.steps,
            previous=trained.previous,
            wait_hint=wait_s,
        )

    async def _rows(self, lease: BatchLease) -> StepPortion:
        columns = await self._columns(lease)
        leased = LeasedRows(lease=lease, advantages=self._advantages, limits=self._limits, columns=columns)
        samples: defaultdict[int, list[SampleReference]] = defaultdict(list)
        for sample in lease.samples:
            samples[sample.sequence].append(sample)
        frames: dict[int, bytes] = {}
        rows: dict[str, Row] = {}
        unusable: list[tuple[int, str]] = []
        # What has come is read while the rest is on its way.
        pieces = get_in_pieces(self._bus, lease.stream, samples, deadline_s=_ROWS_DEADLINE_S)
        async with contextlib.aclosing(pieces):
            async for piece in pieces:
                stored = {sequence: message.payload for sequence, message in piece.complete().items()}
                payloads = {**stored, **await self._redeemed(stored)}
                frames |= {at: payload for at, payload in payloads.items() if isinstance(payload, bytes)}
                for sample in (sample for sequence in payloads for sample in samples[sequence]):
                    row, objection = _row(leased, sample, payloads[sample.sequence])
                    rows[sample.trajectory_id] = row
                    if objection is not None:
                        unusable.append((sample.sequence, objection))
        # Told once all are here: those of a lease that breaks off are read again.
        self._on_rows(lease, frames)
        for sequence, reason in unusable:
            _log.error("row_set_aside", sequence=sequence, reason=reason)
            self._on_set_aside()
        return StepPortion(
            step=lease.step,
            lease_id=lease.lease_id,
            rows=tuple(rows[sample.trajectory_id] for sample in lease.samples),
            totals=lease.totals,
            dealt=lease.dealt,
        )

    async def _columns(self, lease: BatchLease) -> LeasedColumns | None:
        sequences = sorted({column.sequence for group in lease.groups for column in group.columns})
        if lease.columns_stream is None or not sequences:
            return None
        stored = (
            await get_messages(self._bus, lease.columns_stream, sequences, deadline_s=_ROWS_DEADLINE_S)
        ).complete()
        payloads = {sequence: message.payload for sequence, message in stored.items()}
        return LeasedColumns(
            payloads={**payloads, **await self._redeemed(payloads)},
            computed_with=_versions(stored.values()),
            by_rows=self._columns_by_rows,
        )

    async def _redeemed(self, payloads: Mapping[int, bytes]) -> dict[int, bytes | WireError | ClaimUnusable]:
        """By sequence, what lies in object storage in the place of a payload, or why it cannot be had."""
        found: dict[int, bytes | WireError | ClaimUnusable] = {}
        turn = asyncio.Semaphore(_CLAIMS_AT_ONCE)

        async def redeem(sequence: int, payload: bytes) -> None:
            async with turn:
                try:
                    found[sequence] = await self._redeem(decode(payload, ClaimCheck))
                except (WireError, ClaimUnusable) as error:
                    found[sequence] = error

        claims = [(at, payload) for at, payload in payloads.items() if kind_of(payload) == ClaimCheck.KIND]
        fetches = [asyncio.create_task(redeem(sequence, payload)) for sequence, payload in claims]
        try:
            await asyncio.gather(*fetches)
        finally:
            for fetch in fetches:
                fetch.cancel()
            await asyncio.gather(*fetches, return_exceptions=True)
        return found

    async def _redeem(self, claim: ClaimCheck) -> bytes:
        if self._claims is None:
            raise ClaimUnusable(f"{claim.trajectory_id} is in object storage, which this trainer does not read")
        return await self._claims.redeem(claim)

    async def acknowledge(self, step: int, *, lease_id: str, weight_version: int) -> None:
        """Tell the dataflow that the step is durable. What is lost here is said again with the next durable step."""
        identity = self._identity
        ack = LeaseAck(
            lease_id=lease_id,
            job=identity.job,
            policy=identity.policy,
            step=step,
            rank=identity.rank,
            world_size=identity.world_size,
            attempt=identity.attempt,
            weight_version=weight_version,
            acked_at=self._clock(),
        )
        try:
            reply = await self._asked(encode(ack))
        except BusError as error:
            _log.warning("acknowledgement_not_sent", step=step, error=str(error))
            return
        answer = decode(reply.payload, LeaseAcked, LeaseRefused)
        if isinstance(answer, LeaseRefused):
            raise StepRefused(answer)


def _row(
    leased: LeasedRows, sample: SampleReference, payload: bytes | WireError | ClaimUnusable
) -> tuple[Row, str | None]:
    """The row, or a blank one in its place and what is wrong with it."""
    try:
        if isinstance(payload, Exception):
            raise payload
        return leased.row(sample, payload), None
    except (WireError, RowUnusable, ClaimUnusable) as error:
        return leased.blank(sample), str(error)


def _versions(columns: Iterable[StoredMessage]) -> dict[int, int]:
    """By sequence, of the weights that computed a column. They are measured and decide nothing: what has a header that
    cannot be read is left out.
    """
    found: dict[int, int] = {}
    for column in columns:
        try:
            oldest = parse_column_headers(column.headers).oldest_version
        except WireError:
            continue
        if oldest is not None:
            found[column.sequence] = oldest
    return found


@dataclass(frozen=True, kw_only=True)
class _Request:
    portion_id: PortionId
    trained: Trained
    answer: Future[StepPortion | None]


class RowsAhead:
    """Fetches one portion ahead, of the step that is under way or the first of the next, while the rows at hand are
    computed on.

    A request for the next step says which steps are trained, and rollout may wait for exactly that news. So a request
    that has not been answered by the time the step is done is sent again, with the news.
    """

    def __init__(self, stream: BatchStream, background: Background, *, stopping: Callable[[], bool]) -> None:
        self._stream = stream
        self._background = background
        self._stopping = stopping
        self._ahead: _Request | None = None

    def fetch(self, portion_id: PortionId, *, trained: Trained) -> None:
        """Begin to get these rows."""
        self.close()
        answer = self._background.start(self._stream.portion(portion_id, trained=trained, stopping=self._stopping))
        self._ahead = _Request(portion_id=portion_id, trained=trained, answer=answer)

    def take(self, portion_id: PortionId, *, trained: Trained, idle: Callable[[], None]) -> StepPortion | None:
        """The rows; None when the policy is finished or we should stop. `idle` is called while there are none."""
        ahead = self._ahead
        if ahead is None or ahead.portion_id != portion_id or (ahead.trained != trained and not ahead.answer.done()):
            self.fetch(portion_id, trained=trained)
        ahead, self._ahead = self._ahead, None
        assert ahead is not None
        while not ahead.answer.done():
            concurrent.futures.wait((ahead.answer,), timeout=_LOOK_UP_S)
            if not ahead.answer.done():
                idle()
        return ahead.answer.result()

    def close(self) -> None:
        """Rows that were not taken stay where they are; the next request for the step gets the same."""
        if self._ahead is not None:
            self._ahead.answer.cancel()
            self._ahead = None
