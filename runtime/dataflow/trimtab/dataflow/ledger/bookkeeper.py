"""The one hand that writes: decisions are made, recorded and applied one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from trimtab.dataflow.ledger.arrivals import Arrival
from trimtab.dataflow.ledger.evaluation_books import parse_evaluation_group
from trimtab.dataflow.ledger.journal import Journal
from trimtab.dataflow.ledger.ledger import Ledger
from trimtab.dataflow.ledger.records import Record
from trimtab.dataflow.ledger.snapshot import floors, take_snapshot
from trimtab.dataflow.ledger.staged_group import ColumnArrival
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.wire.column import ColumnHeader
from trimtab.fabric.wire.header import TrajectoryHeader

Outcome = TypeVar("Outcome")
_TOKENS_PER_SNAPSHOT = 1 << 24
"""Of granted steps: a hundred megabytes or so of rows that lie in the stream until a snapshot lets them go."""
EPISODES_PER_SNAPSHOT = 1 << 15
"""Of granted steps: their headers are read again by whoever recovers, a few thousand in a second."""
_SNAPSHOT_BYTES_PER_EPISODE = 256
"""A large snapshot, as of a curator that remembers every prompt, is not written for a few headers."""


class BooksBroken(RuntimeError):
    """A record may or may not be in the journal: only reading it again tells. This process must end and recover."""


class Bookkeeper:
    """Owns ledger and journal, and wakes the tasks that wait for a change.

    Headers may arrive while a record is being written. They only ever add to the buffer, so what was decided still
    holds when it is applied.
    """

    def __init__(self, ledger: Ledger, journal: Journal) -> None:
        self.ledger = ledger
        self._journal = journal
        self._turn = asyncio.Lock()
        self._changed = asyncio.Event()
        self._stage_due = asyncio.Event()
        self._broken = asyncio.Event()
        self._working: set[asyncio.Task[Any]] = set()
        self._tokens_at_snapshot = _consumed_tokens(ledger)
        self._floors_at_snapshot = (1, 1)
        self._episodes_at_snapshot = _consumed_episodes(ledger)
        self._announced: set[str] = set()
        """Policies of which is known that something can be decided: another group for them is no news."""

    @property
    def stalled_since(self) -> float | None:
        """On the loop's clock, since when the ledger takes no record; None when it does."""
        return self._journal.stalled_since

    async def record(self, decide: Callable[[Ledger], Record | None]) -> Record | None:
        """Ask for a decision on the books as they are now; write it down, then apply it. None decides nothing.

        A record is written to its end, also when whoever asked for it has gone: a write may wait for long, for a full
        store to have room.
        """
        return await self._to_its_end(self._recorded(decide))

    async def _recorded(self, decide: Callable[[Ledger], Record | None]) -> Record | None:
        async with self._turn:
            self._check()
            record = decide(self.ledger)
            if record is None:
                return None
            try:
                await self._journal.write(record)
                self.ledger.apply(record)
            except BaseException:
                # Also when this process ends: the record may be on its way.
                self._broken.set()
                raise
            self._announced.clear()
            self._notify()
            return record

    async def compact(self, learnt: Callable[[], dict[str, Any]], *, pressed: bool = False) -> bool:
        """Put a snapshot in the place of old records if they are many, or of many or very long rows; says whether it
        did. `learnt` is what the curator knows by then. `pressed`: the streams are nearly full, and it is time for one
        as soon as anything may be deleted that was not then.
        """
        return await self._to_its_end(self._compacted(learnt, pressed=pressed))

    async def _compacted(self, learnt: Callable[[], dict[str, Any]], *, pressed: bool) -> bool:
        async with self._turn:
            self._check()
            snapshot_floors = floors(self.ledger)
            if not self._snapshot_is_due() and not (pressed and snapshot_floors != self._floors_at_snapshot):
                return False
            try:
                await self._journal.compact(take_snapshot(self.ledger, learnt=learnt()))
            except BaseException:
                self._broken.set()
                raise
            self._floors_at_snapshot = snapshot_floors
            self._tokens_at_snapshot = _consumed_tokens(self.ledger)
            self._episodes_at_snapshot = _consumed_episodes(self.ledger)
            return True

    def _snapshot_is_due(self) -> bool:
        few = max(EPISODES_PER_SNAPSHOT, self._journal.snapshot_bytes // _SNAPSHOT_BYTES_PER_EPISODE)
        return (
            self._journal.grown
            or _consumed_tokens(self.ledger) - self._tokens_at_snapshot >= _TOKENS_PER_SNAPSHOT
            or _consumed_episodes(self.ledger) - self._episodes_at_snapshot >= few
        )

    @property
    def confirmed_at(self) -> float:
        """On the loop's clock, when these books were the newest for sure."""
        return self._journal.confirmed_at

    async def confirm(self) -> None:
        """Raise when another process has written since: what these books say is out of date. Raises BusError where that
        cannot be known now."""
        async with self._turn:
            self._check()
            try:
                await self._journal.confirm()
            except BusError:
                raise
            except BaseException:
                self._broken.set()
                raise

    async def broken(self) -> None:
        """Raises BooksBroken as soon as these books can no longer be trusted; never returns."""
        await self._broken.wait()
        self._check()

    def arrived(self, sequence: int, trajectory_id: str, header: TrajectoryHeader) -> Arrival:
        arrival = self.ledger.arrived(sequence, trajectory_id, header)
        news = arrival in (Arrival.FAILED, Arrival.EMPTY, Arrival.EVALUATED)
        if news or (arrival is Arrival.COMPLETED and self._is_news(header.policy)):
            self._notify()
        if arrival is Arrival.STAGED:
            self._tell_stages()
            if not self.ledger.waits_for_stages(header.policy, header.group_id):
                self._notify()  # its columns were here before it
        return arrival

    def column_arrived(self, sequence: int, header: ColumnHeader) -> ColumnArrival:
        arrival = self.ledger.column_arrived(sequence, header)
        self._tell_stages()
        news = arrival in (ColumnArrival.FAILED, ColumnArrival.LEFT_OUT)
        if arrival is ColumnArrival.DONE:
            news = parse_evaluation_group(header.group_id) is not None or self._is_news(header.policy)
        if news:
            self._notify()
        return arrival

    def _tell_stages(self) -> None:
        if self._is_due:
            self._stage_due.set()

    @property
    def _is_due(self) -> bool:
        return any(books.is_due for books in self.ledger.asking)

    async def stages_due(self, *, timeout_s: float) -> None:
        """Return when a stage is to be asked something, or when the time is over."""
        if self._is_due:
            return
        self._stage_due.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._stage_due.wait()
        except TimeoutError:
            return

    def _is_news(self, stream: str) -> bool:
        """One more group in the buffer is news only to the filters, and to the ranks once it makes enough: no
        other answer changes with it.
        """
        if self.ledger.has_filters:
            return True
        before = len(self._announced)
        self._announced.update(self.ledger.deciders(stream, besides=self._announced))
        return len(self._announced) > before

    def nudge(self) -> None:
        """Something has changed that is not in the books and that decisions depend on."""
        self._notify()

    async def changed(self, *, timeout_s: float) -> None:
        """Return at the next change, or when the time is over."""
        event = self._changed
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError:
            return

    async def _to_its_end(self, work: Coroutine[Any, Any, Outcome]) -> Outcome:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._worked)
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Nothing is written any more. What was on its way may have arrived."""
        for task in tuple(self._working):
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def _worked(self, task: asyncio.Task[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # seen, also where whoever asked has gone: the books are broken, and say so

    def _check(self) -> None:
        if self._broken.is_set():
            raise BooksBroken("a write to the ledger's journal did not succeed: this process must recover")

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _consumed_tokens(ledger: Ledger) -> int:
    return sum(trainer.consumed_tokens for trainer in ledger.trainers.values())


def _consumed_episodes(ledger: Ledger) -> int:
    return sum(trainer.consumed_samples for trainer in ledger.trainers.values())
