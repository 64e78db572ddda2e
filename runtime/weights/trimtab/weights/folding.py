"""Folded deltas from storage alone: one hop over versions that a trainer published one by one, made by a process that
has its key, at any time later. No more than a few blocks are in memory; what has to be read lies in a folder on disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import msgspec

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.upload import Progress
from trimtab.fabric.signing import Signer, Verifier
from trimtab.weights.assembly import ChunkFiles, Journey, plan_journey, rebuilt
from trimtab.weights.codec.blocks import Codec, encode_change
from trimtab.weights.codec.change import find_change
from trimtab.weights.store.chunk_fetch import fetch_chunks
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.latest import Latest, LatestPointer
from trimtab.weights.store.leases import Lease, drop_lease, kept_lease
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, cheapest_route
from trimtab.weights.version_writer import Begin, EncodedBlock, VersionWriter, in_order

_MOST_THREADS = 16
_PARALLEL = 16
_LEASE_DEADLINE_S = 30.0


class FoldRefused(ValueError):
    """There is no such fold to be made; the message says why."""


@dataclass(frozen=True)
class FoldPlan:
    """What is read for a fold: the cheapest way from an anchor to its start, and the deltas from there to its end."""

    epoch: int
    before: tuple[Entry, ...]
    between: tuple[Entry, ...]

    @property
    def start(self) -> Position:
        return self.before[-1].target

    @property
    def end(self) -> Position:
        return self.between[-1].target


def plan_fold(latest: Latest, start: Position, end: Position) -> FoldPlan:
    """Raises FoldRefused."""
    targets = {entry.target for entry in latest.catalogue}
    if start >= end:
        raise FoldRefused(f"a fold leads forward, and {end} does not come after {start}")
    for position in (start, end):
        if position not in targets:
            raise FoldRefused(f"{position} is not in the catalogue; `trimtab weights inspect` lists what is")
    if any((entry.base, entry.target) == (start, end) for entry in latest.catalogue):
        raise FoldRefused(f"a delta from {start} to {end} is there already")
    if end.epoch != latest.epoch:
        # A version's chunks lie in the folder of its epoch, and only the present epoch may be written to.
        raise FoldRefused(f"{end} is of an earlier epoch than {latest.epoch}, the present one; fold to a version of it")
    try:
        between = cheapest_route(_up_to(latest, end, anchors=False), start).entries
    except NoRoute:
        raise FoldRefused(f"no deltas lead from {start} to {end}: they are not of one lineage") from None
    try:
        before = cheapest_route(_up_to(latest, start, anchors=True), None).entries
    except NoRoute:
        raise FoldRefused(f"{start} cannot be rebuilt: the anchor it goes back to has been collected") from None
    return FoldPlan(latest.epoch, before, between)


def _up_to(latest: Latest, end: Position, *, anchors: bool) -> Latest:
    """The part of the catalogue that ends at a position."""
    kept = (entry for entry in latest.catalogue if entry.target <= end and (anchors or entry.base is not None))
    catalogue = tuple(kept)
    newest = max((entry.target for entry in catalogue), default=None)
    if newest != end:
        raise NoRoute(f"no delta leads to {end}")
    return msgspec.structs.replace(latest, catalogue=catalogue, newest=end)


@dataclass(frozen=True, kw_only=True)
class FoldWriter:
    """Writes folds of one policy. `scratch` gets the chunks of an anchor and of the deltas, and is emptied again;
    `member` is the name under which they are leased meanwhile.
    """

    store: ObjectStore
    policy: str
    signer: Signer
    verifier: Verifier
    member: str
    scratch: Path
    clock: Callable[[], float]
    codec: Codec = Codec.AUTO
    threads: int = min(_MOST_THREADS, os.cpu_count() or 1)

    async def fold(
        self,
        plan: FoldPlan,
        *,
        deadline_s: float,
        fetched: Progress | None = None,
        encoded: Progress | None = None,
    ) -> Entry:
        """`fetched` counts bytes, `encoded` blocks. Nothing is claimed: a publisher goes on beside it.

        Raises SupersededTrainer when a trainer starts meanwhile, MissingChunk or ObjectNotFound when something was
        collected before it was leased; what leads elsewhere than promised raises WrongWeights.
        """
        reader = ManifestReader(self.store, self.policy, self.verifier, cached=0)
        spool = self.scratch / "chunks"
        async with self._leased((*plan.before, *plan.between)):
            before = [await reader.read(entry, deadline_s=deadline_s) for entry in plan.before]
            between = [await reader.read(entry, deadline_s=deadline_s) for entry in plan.between]
            start = plan_journey(before, layout=None, held=None)
            end = plan_journey(between, layout=start.layout, held=start.target)
            changed = Journey(start.layout, start.target, {index: start.stages[index] for index in end.stages})
            try:
                files = await fetch_chunks(
                    self.store, {**changed.chunks(), **end.chunks()}, spool=spool, rate=None, parallel=_PARALLEL,
                    deadline_s=deadline_s, progress=fetched,
                )  # fmt: skip
                return await self._write(plan, start, end, ChunkFiles(files), encoded, deadline_s=deadline_s)
            finally:
                await asyncio.to_thread(shutil.rmtree, spool, ignore_errors=True)

    async def _write(
        self, plan: FoldPlan, start: Journey, end: Journey, chunks: ChunkFiles, encoded: Progress | None, *,
        deadline_s: float,
    ) -> Entry:  # fmt: skip
        writer = VersionWriter(
            store=self.store, pointer=LatestPointer(self.store, self.policy), in_flight=InFlight(), policy=self.policy,
            epoch=plan.epoch, signer=self.signer, clock=self.clock,
        )  # fmt: skip

        def job(index: int) -> EncodedBlock:
            block, base = start.layout.blocks[index], start.target.digests[index]
            old, _ = rebuilt(block, None, start.stages[index], chunks)
            new, _ = rebuilt(block, old, end.stages[index], chunks)
            change = find_change(old, new, width=block.element.width)
            assert change is not None, "blocks with different digests differ"
            payload = encode_change(old, change, block.element, codec=self.codec)
            return EncodedBlock(index, payload, base, end.target.digests[index])

        def jobs() -> Iterator[Callable[[], EncodedBlock]]:
            for index in sorted(end.stages):
                yield partial(job, index)

        async def blocks() -> AsyncIterator[EncodedBlock]:
            done = 0
            async for block in in_order(jobs(), executor, ahead=self.threads):
                yield block
                done += 1
                if encoded is not None:
                    encoded(done, len(end.stages))

        with ThreadPoolExecutor(self.threads, thread_name_prefix="fold") as executor:
            return await writer.write(
                plan.end,
                blocks(),
                begin=Begin(plan.start, start.target.root),
                root=lambda _: end.target.root,
                layout=start.layout,
                deadline_s=deadline_s,
            )

    @asynccontextmanager
    async def _leased(self, entries: tuple[Entry, ...]) -> AsyncIterator[None]:
        """Keeps the trainer's collection from what is read here, for however long that takes."""
        lease = Lease(member=self.member, pins=tuple(entry.manifest for entry in entries))
        try:
            async with kept_lease(self.store, self.policy, lease):
                yield
        finally:
            await drop_lease(self.store, self.policy, self.member, deadline_s=_LEASE_DEADLINE_S)
