"""Keeps the latest portions as they were dealt, and what each rank was sent: a thousand ranks cost one deal."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from trimtab.dataflow.leases import DealtPortion, LeaseTerms
from trimtab.dataflow.ledger.groups import Allotment
from trimtab.fabric.wire.lease import BatchRequest, StepTotals

_LEASE_S = 3600.0
_MAX_ROWS = 1 << 18
_MAX_SENT_BYTES = 64 << 20

_Key = tuple[str, int, int, int]
"""Policy, step, chunk and number of ranks."""


class DealtLeases:
    """A cache and nothing else: what is not in it is dealt again from the books, to the same rows."""

    def __init__(
        self,
        *,
        stream: str,
        columns_stream: str | None = None,
        clock: Callable[[], float],
        max_rows: int = _MAX_ROWS,
        max_sent_bytes: int = _MAX_SENT_BYTES,
    ) -> None:
        self._stream = stream
        self._columns_stream = columns_stream
        self._clock = clock
        self._max_rows = max_rows
        self._max_sent_bytes = max_sent_bytes
        self._dealt: OrderedDict[_Key, _Kept] = OrderedDict()

    def answer(
        self, request: BatchRequest, portion: Sequence[Allotment], *, totals: Callable[[], StepTotals | None]
    ) -> bytes:
        """The lease of one rank, encoded. `portion` is what the books say now; `totals` is asked when it is dealt."""
        kept = self._kept(request, portion, totals)
        sent = kept.sent.get(request.rank)
        if sent is None:
            sent = kept.dealt.lease(request)
            kept.sent[request.rank] = sent
            kept.sent_bytes += len(sent)
            self._make_room()
        return sent

    def forget(self, policy: str, *, before_step: int) -> None:
        """These steps are durable: nobody gets their rows again."""
        for key in [key for key in self._dealt if key[0] == policy and key[1] < before_step]:
            del self._dealt[key]

    def _kept(
        self, request: BatchRequest, portion: Sequence[Allotment], totals: Callable[[], StepTotals | None]
    ) -> _Kept:
        key = (request.policy, request.step, request.chunk, request.world_size)
        now = self._clock()
        kept = self._dealt.get(key)
        # The books never change a portion; they put another in its place, as after a manifest that routes otherwise.
        if kept is None or kept.dealt.portion is not portion or now >= kept.renew_at:
            terms = LeaseTerms(
                totals=totals(),
                stream=self._stream,
                columns_stream=self._columns_stream,
                issued_at=now,
                expires_at=now + _LEASE_S,
            )
            kept = _Kept(DealtPortion(portion, terms, world_size=request.world_size), renew_at=now + _LEASE_S / 2)
            self._dealt[key] = kept
        self._dealt.move_to_end(key)
        return kept

    def _make_room(self) -> None:
        """The newest stays whatever its size: it is what the ranks ask for."""
        rows = sum(kept.dealt.rows for kept in self._dealt.values())
        size = sum(kept.sent_bytes for kept in self._dealt.values())
        while len(self._dealt) > 1 and (rows > self._max_rows or size > self._max_sent_bytes):
            _, oldest = self._dealt.popitem(last=False)
            rows -= oldest.dealt.rows
            size -= oldest.sent_bytes


class _Kept:
    """A portion as it was dealt, and by rank what was sent of it."""

    def __init__(self, dealt: DealtPortion, *, renew_at: float) -> None:
        self.dealt = dealt
        self.renew_at = renew_at
        """From then on it is dealt anew, so that nobody gets a lease that is about to expire."""
        self.sent: dict[int, bytes] = {}
        self.sent_bytes = 0
