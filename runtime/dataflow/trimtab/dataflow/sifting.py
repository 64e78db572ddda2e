"""Asks the filters about groups that have arrived, and records what they say before anyone can be granted them."""

from __future__ import annotations

from functools import partial
from itertools import islice

from trimtab.dataflow.filters.contract import Filter
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsSifted, ReducedGroup

_IDLE_S = 1.0
_MAX_AT_ONCE = 512


class Sifter:
    """One for all policies. A group is asked about once: its verdict is in the ledger from then on."""

    def __init__(self, books: Bookkeeper, filter_: Filter) -> None:
        self._books = books
        self._filter = filter_

    async def run(self) -> None:
        while True:
            written = [await self._books.record(partial(self._verdicts, name)) for name in self._books.ledger.streams]
            if not any(written):
                await self._books.changed(timeout_s=_IDLE_S)

    def _verdicts(self, policy: str, ledger: Ledger) -> GroupsSifted | None:
        kept, reduced, left_out = [], [], []
        for group_id, group in islice(ledger.streams[policy].unsifted.items(), _MAX_AT_ONCE):
            outcome = group.outcome()
            indices = self._filter.kept(outcome)
            if not indices:
                left_out.append(group_id)
            elif len(indices) == len(outcome.samples):
                kept.append(group_id)
            else:
                reduced.append(ReducedGroup(group_id, tuple(sorted(indices))))
        if not (kept or reduced or left_out):
            return None
        return GroupsSifted(policy=policy, kept=tuple(kept), reduced=tuple(reduced), left_out=tuple(left_out))
