"""Puts the rows that this rank trains on into the archive, beside training. A store that is away holds nothing up: rows
wait up to a bound, and beyond it whole steps are left out, counted and told.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.sample_archive import ArchivedRow, archive_of, parse_key, part_key, written_parts
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.lease import BatchLease
from trimtab.fabric.wire.trajectory import Trajectory

_log = structlog.get_logger(__name__)
_DEADLINE_S = 120.0
_BACKOFF = FullJitter(base_s=1.0, cap_s=30.0)
_PRUNE_EVERY = 20
_GATHERED_STEPS = 4
MAX_WAITING_BYTES = 256 << 20
"""Of rows as they came, which are compressed where they are long."""


class ArchiveMetrics:
    """One rank."""

    def __init__(self, metrics: Metrics) -> None:
        self.steps = metrics.counter("archive_steps", "Steps whose rows of this rank are in the archive")
        self.bytes = metrics.counter("archive_bytes", "Bytes written to the archive")
        self.waiting_bytes = metrics.gauge("archive_waiting_bytes", "Bytes of rows that wait to be archived")
        self.lost_steps = metrics.counter(
            "archive_lost_steps",
            "Steps whose rows of this rank are not archived, as too many waited for the store",
        )


@dataclass
class _Step:
    """The rows of a step as they come, by portion; what a portion is told again replaces what it was."""

    number: int
    portions: dict[int, dict[int, bytes]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(payload) for rows in self.portions.values() for payload in rows.values())

    def rows(self) -> Iterator[ArchivedRow]:
        """Without what could not be trained on either."""
        for _, rows in sorted(self.portions.items()):
            for sequence, payload in rows.items():
                try:
                    yield ArchivedRow(step=self.number, sequence=sequence, row=decode(payload, Trajectory))
                except WireError:
                    continue


class SampleArchiver:
    """Of one rank. `note` and `run` belong to the same event loop."""

    def __init__(
        self,
        store: ObjectStore,
        metrics: ArchiveMetrics,
        *,
        policy: str,
        rank: int,
        keep_steps: int,
        max_waiting_bytes: int = MAX_WAITING_BYTES,
        backoff: FullJitter = _BACKOFF,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._policy = policy
        self._rank = rank
        self._keep_steps = keep_steps
        self._max_waiting_bytes = max_waiting_bytes
        self._backoff = backoff
        self._gathering: dict[int, _Step] = {}
        self._whole_until = -1
        self._waiting: deque[_Step] = deque()
        self._waiting_bytes = 0
        self._came = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._archived = 0
        self.lost_steps = 0
        """Since this rank was started."""

    def note(self, lease: BatchLease, payloads: Mapping[int, bytes]) -> None:
        """The rows of a portion, by sequence. A row that is trained on again is in the archive with its first step."""
        if lease.step <= self._whole_until:
            return
        step = self._gathering.setdefault(lease.step, _Step(lease.step))
        fresh = (sample.sequence for sample in lease.samples if not sample.uses)
        step.portions[lease.chunk] = {sequence: payloads[sequence] for sequence in fresh if sequence in payloads}
        if lease.last:
            self._whole_until = lease.step
            self._gathering = {number: one for number, one in self._gathering.items() if number > lease.step}
            self._add(step)
        while len(self._gathering) > _GATHERED_STEPS:
            del self._gathering[min(self._gathering)]

    def _add(self, step: _Step) -> None:
        if self._waiting and self._waiting_bytes + step.size > self._max_waiting_bytes:
            self._lose(step)
            return
        self._waiting.append(step)
        self._count_waiting(step.size)
        self._came.set()
        self._idle.clear()

    def _lose(self, step: _Step) -> None:
        if self.lost_steps == 0:
            _log.warning("archive_full", policy=self._policy, step=step.number, waiting_bytes=self._waiting_bytes)
        self.lost_steps += 1
        self._metrics.lost_steps.inc()

    def _count_waiting(self, change: int) -> None:
        self._waiting_bytes += change
        self._metrics.waiting_bytes.set(self._waiting_bytes)

    async def run(self) -> None:
        """Until cancelled."""
        failures = 0
        while True:
            await self._came.wait()
            try:
                await self._store_step(self._waiting[0])
            except ObjectStoreError as error:
                delay = self._backoff.delay_s(failures)
                failures += 1
                _log.warning("archive_repeated", policy=self._policy, error=str(error), delay_s=delay)
                await asyncio.sleep(delay)
                continue
            failures = 0
            self._count_waiting(-self._waiting.popleft().size)
            if not self._waiting:
                self._came.clear()
                self._idle.set()

    async def drain(self, *, deadline_s: float) -> None:
        """At the end of training: wait for what is still to be stored, and tell what was not."""
        try:
            async with asyncio.timeout(deadline_s):
                await self._idle.wait()
        except TimeoutError:
            for step in self._waiting:
                self._lose(step)
            _log.warning("archive_left_behind", policy=self._policy, steps=len(self._waiting))

    async def _store_step(self, step: _Step) -> None:
        # Numbers to text and compression take a while: in a thread, so that leases and heartbeats go on.
        bodies = await asyncio.to_thread(lambda: list(written_parts(step.rows())))
        for part, body in enumerate(bodies):
            key = part_key(self._policy, step=step.number, rank=self._rank, part=part)
            await self._store.put(key, body, deadline_s=_DEADLINE_S)
            self._metrics.bytes.inc(len(body))
        if self._rank == 0 and self._archived % _PRUNE_EVERY == 0:
            await self._prune(newest=step.number)
        self._archived += 1
        self._metrics.steps.inc()

    async def _prune(self, *, newest: int) -> None:
        """By listing, as trainers before this one may have had other ranks and kept more."""
        async for info in self._store.scan(archive_of(self._policy), deadline_s=_DEADLINE_S):
            place = parse_key(info.key)
            if place is not None and place.step <= newest - self._keep_steps:
                await self._store.delete(info.key, deadline_s=_DEADLINE_S)
