"""How the books go on when they and a trainer's checkpoints do not meet, because a power loss took the end of one.

A ledger that lost its end does not know what it has handed out since its last record, and a trainer that lost its
newest checkpoint has lost steps whose samples were trained. Either way all that was there by then is given up for good,
and the policy goes on at the step that its trainer has proven, with what is asked for from here on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.lost_rows import never_issued
from trimtab.dataflow.ledger.records import LedgerAnchoredAnew
from trimtab.fabric.checkpoint_seal import UnprovenCheckpoint, proven_step
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.lease import LeaseRefused, Refusal

_log = structlog.get_logger(__name__)


class AnchorMetrics:
    """Series exist from zero on: a count that begins with one is no increase to Prometheus."""

    def __init__(self, metrics: Metrics) -> None:
        self._anchored = metrics.counter(
            "ledger_anchored_anew",
            "Times that ledger and checkpoints did not meet and the policy went on, by what had lost its end",
            ("policy", "lost"),
        )
        self._given_up = metrics.counter(
            "ledger_given_up_groups", "Groups that were given up when ledger and checkpoints did not meet"
        )

    def watch(self, policies: Sequence[str]) -> None:
        for policy in policies:
            for lost in ("ledger", "checkpoint", "rows"):
                self._anchored.labels(policy, lost)

    def note(self, record: LedgerAnchoredAnew) -> None:
        lost = "rows" if record.lost_rows else "ledger" if record.is_forward else "checkpoint"
        self._anchored.labels(record.policy, lost).inc()
        self._given_up.inc(record.given_up)


class Anchoring:
    """Answers proofs."""

    def __init__(
        self,
        books: Bookkeeper,
        metrics: AnchorMetrics,
        *,
        job: str,
        public_keys: Sequence[str],
        clock: Callable[[], float],
    ) -> None:
        """`job` is namespace/name, `public_keys` those that its trainers sign with."""
        self._books = books
        self._metrics = metrics
        self._job = job
        self._verifier = Verifier(public_keys) if public_keys else None
        self._clock = clock

    async def answer(self, proof: CheckpointProof) -> LedgerAnchored | LeaseRefused:
        books = self._books.ledger.trainers.get(proof.policy)
        if books is None:
            return _refused(f"the job has no policy {proof.policy!r}", Refusal.UNKNOWN_POLICY)
        if proof.attempt < books.attempt:
            return _refused(f"attempt {proof.attempt} was superseded by {books.attempt}", Refusal.SUPERSEDED)
        if self._verifier is None:
            return _refused("TRIMTAB_WEIGHTS__PUBLIC_KEYS: the dataflow knows no key to verify checkpoints with")
        try:
            step = proven_step(proof.sealed, job=self._job, policy=proof.policy, verifier=self._verifier)
        except UnprovenCheckpoint as error:
            return _refused(str(error))
        if step != proof.step:
            return _refused(f"the pointer names step {step}, asked for was {proof.step}")
        # What these books do not know another process may have written down.
        await self._books.confirm()
        record = await self._books.record(lambda ledger: anchored(ledger, proof.policy, step=step, now=self._clock()))
        if isinstance(record, LedgerAnchoredAnew):
            self._metrics.note(record)
            _log.error(
                "ledger_anchored_anew",
                policy=record.policy,
                step=record.step,
                ledger_was_at=record.was_at,
                lost="the end of the ledger" if record.is_forward else "the newest checkpoint",
                given_up_groups=record.given_up,
            )
        return LedgerAnchored(policy=proof.policy, step=step)


def anchored(ledger: Ledger, policy: str, *, step: int, now: float) -> LedgerAnchoredAnew | None:
    """The record with which a policy goes on at a proven step; None where the books have that step, or it is due."""
    books = ledger.trainers[policy]
    if books.durable_steps <= step <= books.next_step:
        return None
    return LedgerAnchoredAnew(
        policy=policy,
        step=step,
        was_at=books.next_step if step > books.next_step else books.durable_steps,
        issued=never_issued(ledger, now=now),
        given_up=ledger.unused_groups(),
        at=now,
    )


def _refused(message: str, refusal: Refusal = Refusal.UNPROVEN) -> LeaseRefused:
    return LeaseRefused(refusal=refusal, message=message)
