"""What happens to trajectories as they arrive: their headers are taken, and filters are asked about complete groups.
Payloads stay in the stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice

import structlog

from trimtab.dataflow.filters import Chain
from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.bookkeeper import Bookkeeper
from trimtab.dataflow.ledger.groups import Group
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import GroupsFiltered, ReducedGroup
from trimtab.dataflow.outcomes import header_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusTimeout
from trimtab.fabric.bus.reader import StreamReader

_log = structlog.get_logger(__name__)
_BATCH = 512
_WAIT_S = 5.0
# A pull costs as much as a dozen headers. Where they come one by one, a moment's patience takes many at a time.
_LINGER_S = 0.004
_FEW = 64
_FILTER_IDLE_S = 1.0
_FILTERED_AT_ONCE = 512


class Intake:
    """Follows the trajectory stream from where recovery ended. Raises StreamRewound when that has lost its end: then
    recovery says what becomes of it."""

    def __init__(
        self,
        bus: Bus,
        books: Bookkeeper,
        *,
        stream: str,
        after_sequence: int,
        on_unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_unreadable = on_unreadable
        self._reader = StreamReader(
            bus, stream=stream, after_sequence=after_sequence, headers_only=True, never_rewound=True
        )
        self._books = books

    async def run(self) -> None:
        async with self._reader:
            while True:
                try:
                    deliveries = await self._reader.read(batch=_BATCH, wait_s=_WAIT_S)
                except BusTimeout:
                    continue
                for delivery in deliveries:
                    parsed = header_of(delivery)
                    if parsed is None:
                        self._on_unreadable()
                        continue
                    trajectory_id, header = parsed
                    arrival = self._books.arrived(delivery.sequence, trajectory_id, header)
                    if arrival in (Arrival.FAILED, Arrival.REFUSED):
                        _log.warning(
                            f"group_{arrival}", group=header.group_id, error=header.error, worker=header.worker
                        )
                if len(deliveries) < _FEW:
                    await asyncio.sleep(_LINGER_S)


class FilterLoop:
    """Asks the filters about groups that have arrived, and records what they say before a batch can be granted them.
    One loop serves all policies. The filters are asked about a group once: their verdict is in the ledger from then on.
    """

    def __init__(self, books: Bookkeeper, filter_: Chain) -> None:
        self._books = books
        self._filter = filter_

    async def run(self) -> None:
        while True:
            written = [await self._books.record(partial(self._verdicts, name)) for name in self._books.ledger.streams]
            if not any(written):
                await self._books.changed(timeout_s=_FILTER_IDLE_S)

    def _verdicts(self, policy: str, ledger: Ledger) -> GroupsFiltered | None:
        kept, reduced, left_out = [], [], []
        for group_id, group in islice(ledger.streams[policy].unfiltered.items(), _FILTERED_AT_ONCE):
            rows = self._filter.kept(group.outcome())
            if not rows:
                left_out.append(group_id)
            elif len(rows) == len(group.samples):
                kept.append(group_id)
            else:
                reduced.append(_reduced(group, rows))
        if not (kept or reduced or left_out):
            return None
        return GroupsFiltered(policy=policy, kept=tuple(kept), reduced=tuple(reduced), left_out=tuple(left_out))


def _reduced(group: Group, kept: frozenset[tuple[int, int]]) -> ReducedGroup:
    """Episodes that are kept whole by their index alone, which is all there is in most jobs."""
    whole, rows = [], []
    for index, samples in group.rows_by_episode.items():
        own = [(index, sample.part) for sample in samples if (index, sample.part) in kept]
        if len(own) == len(samples):
            whole.append(index)
        else:
            rows += own
    return ReducedGroup(group.group_id, tuple(whole), tuple(rows))
