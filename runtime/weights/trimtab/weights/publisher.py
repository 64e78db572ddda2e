"""Publishes versions of a policy's weights. The trainer calls `capture` between two steps, which takes a few times as
long as copying the model, and `publish` runs beside the next ones.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusConflict, BusNotFound, BusTimeout
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.baseline import Baseline, Captured, WeightChanges, WeightSource
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.digests import root_digest
from trimtab.weights.store.chunk_writer import CHUNK_BYTES
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, cheapest_route, joinable
from trimtab.weights.upkeep import Upkeep, UpkeepRules
from trimtab.weights.version_writer import Begin, EncodedBlock, VersionWriter, encoded_change, encoded_whole, in_order

_log = structlog.get_logger(__name__)
_MOST_THREADS = 16
_CONFLICT_BACKOFF = FullJitter(base_s=0.05, cap_s=1.0)


async def _nothing() -> AsyncIterator[EncodedBlock]:
    return
    yield


def _hops_for_joiners(latest: Latest) -> int:
    try:
        return len(cheapest_route(latest, None).entries)
    except NoRoute:
        return 0


class WeightPublisher:
    """The publishing end of one policy. Made by `open`, which claims the epoch; `close` it."""

    def __init__(
        self, writer: VersionWriter, pointers: KeyValue, claimed: Latest, rules: UpkeepRules, *, job: str, folder: Path,
        codec: Codec, threads: int,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._pointers = pointers
        self._claimed = claimed
        self._job = job
        self._folder = folder
        self._codec = codec
        self._threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="encode")
        manifests = ManifestReader(
            writer.store,
            writer.policy,
            Verifier([writer.signer.public_text]),
            cached=2 * rules.collection.keep_versions,
        )
        self._upkeep = Upkeep(
            writer, manifests, rules, folder=folder, codec=codec, executor=self._executor, threads=threads,
            since_anchor=_hops_for_joiners(claimed), clock=writer.clock,
        )  # fmt: skip
        self._baseline: Baseline | None = None
        self._published: Entry | None = None

    @classmethod
    async def open(
        cls, store: ObjectStore, pointers: KeyValue, *, job: str, policy: str, signer: Signer, rules: UpkeepRules,
        folder: Path, codec: Codec = Codec.AUTO, threads: int | None = None, clock: Callable[[], float],
        deadline_s: float, chunk_bytes: int = CHUNK_BYTES,
    ) -> WeightPublisher:  # fmt: skip
        """`folder` is scratch space on disk: for anchors before they are uploaded, and for the state folds begin at."""
        pointer = LatestPointer(store, policy)
        claimed = await pointer.claim_epoch(deadline_s=deadline_s)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.to_thread(folder.mkdir, parents=True)
        writer = VersionWriter(
            store=store, pointer=pointer, in_flight=InFlight(), policy=policy, epoch=claimed.epoch, signer=signer,
            clock=clock, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        threads = threads or min(_MOST_THREADS, os.cpu_count() or 1)
        return cls(writer, pointers, claimed, rules, job=job, folder=folder, codec=codec, threads=threads)

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    def capture(self, source: WeightSource | WeightChanges) -> Captured:
        """What `publish` needs to know of the weights as they are now. Not while a publication is under way."""
        if isinstance(source, WeightChanges):
            assert self._baseline is not None, "the first capture is of all weights"
            return self._baseline.take(source)
        if self._baseline is None:
            self._baseline = Baseline(source.layout, self._folder, self._executor)
            self._baseline.fill(source)
            return Captured({})
        return self._baseline.capture(source)

    async def publish(self, version: int, captured: Captured, *, deadline_s: float) -> WeightPointer:
        """Raises SupersededTrainer when another trainer has taken over.

        After any other error it can be repeated: whatever of it has happened is recognised.
        """
        baseline = self._baseline
        assert baseline is not None, "capture comes first"
        target = Position(self.epoch, version)
        is_new = self._published is None or self._published.target != target
        if is_new and self._published is None:
            # Nothing, unless an earlier first version never got out.
            await asyncio.to_thread(baseline.advance, captured, baseline.digests)
            self._published = await self._write_first(baseline, target, deadline_s=deadline_s)
        elif is_new:
            digests = list(baseline.digests)
            # From here on the version is public; what follows in this line is only about the next one.
            self._published = await self._write_delta(captured, baseline, digests, target, deadline_s=deadline_s)
            await asyncio.to_thread(baseline.advance, captured, digests)
        entry = self._published
        assert entry is not None
        pointer = self._pointer(entry)
        await announce(self._pointers, pointer, deadline_s=deadline_s)
        _log.info(
            "weights_published", policy=pointer.policy, version=version, base=pointer.base_version, bytes=entry.bytes
        )
        if is_new:
            await self._upkeep.after(baseline, target, was_anchor=entry.base is None)
        return pointer

    async def flush(self) -> None:
        """Wait for anchors and folds that are still on their way."""
        await self._upkeep.flush()

    async def close(self) -> None:
        await self._upkeep.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _write_first(self, baseline: Baseline, target: Position, *, deadline_s: float) -> Entry:
        """A trainer that resumes where a published version was goes on from it; otherwise everything is new."""
        await asyncio.to_thread(baseline.hash_all)
        root = baseline.root
        same = {entry.target for entry in self._claimed.catalogue if entry.root == root and entry.target < target}
        # What builds on a version without an anchor could not be pulled by joiners, nor by holders of dead lineages.
        known = same & joinable(self._claimed)
        if known:
            begin, blocks = Begin(max(known), root), _nothing()
        else:
            begin = None
            jobs = (partial(encoded_whole, baseline, block) for block in baseline.layout.blocks)
            blocks = in_order(jobs, self._executor, ahead=self._threads)
        return await self._writer.write(
            target, blocks, begin=begin, root=lambda _: root, layout=baseline.layout, deadline_s=deadline_s
        )

    async def _write_delta(
        self, captured: Captured, baseline: Baseline, digests: list[bytes], target: Position, *, deadline_s: float
    ) -> Entry:
        """`digests` are those of the baseline's blocks, and become those of the target's."""
        previous = self._published
        assert previous is not None
        jobs = (
            partial(encoded_change, baseline, baseline.layout.blocks[index], change, self._codec)
            for index, change in sorted(captured.changes.items())
        )

        def root(changed: dict[int, bytes]) -> str:
            for index, digest in changed.items():
                digests[index] = digest
            return root_digest(baseline.layout, digests)

        return await self._writer.write(
            target,
            in_order(jobs, self._executor, ahead=self._threads),
            begin=Begin(previous.target, previous.root),
            root=root,
            layout=baseline.layout,
            deadline_s=deadline_s,
        )

    def _pointer(self, entry: Entry) -> WeightPointer:
        same_epoch = entry.base is not None and entry.base.epoch == entry.target.epoch
        return WeightPointer(
            job=self._job,
            policy=self._writer.policy,
            version=entry.target.version,
            epoch=entry.target.epoch,
            manifest_key=entry.key(self._writer.policy),
            manifest_digest=f"sha256:{entry.manifest}",
            base_version=entry.base.version if entry.base is not None and same_epoch else None,
            size_bytes=entry.bytes,
            published_at=self._writer.clock(),
        )


async def announce(pointers: KeyValue, pointer: WeightPointer, *, deadline_s: float) -> None:
    """Tell the pools of a new version over the bus; the store decides which version is the newest. By compare-and-swap:
    a trainer that was superseded since its write to the store must not have the last word.
    """
    value = encode(pointer)
    attempt = 0
    try:
        async with asyncio.timeout(deadline_s):
            while not await _swapped(pointers, pointer, value, deadline_s=deadline_s):
                await asyncio.sleep(_CONFLICT_BACKOFF.delay_s(attempt))
                attempt += 1
    except TimeoutError:
        raise BusTimeout(f"could not announce version {pointer.version} within {deadline_s:.3g} s") from None


async def _swapped(pointers: KeyValue, pointer: WeightPointer, value: bytes, *, deadline_s: float) -> bool:
    try:
        present = await pointers.get(pointer.policy, deadline_s=deadline_s)
    except BusNotFound:
        present = None
    try:
        if present is None:
            await pointers.create(pointer.policy, value, deadline_s=deadline_s)
            return True
        told = _told_epoch(present.value, policy=pointer.policy)
        if told > pointer.epoch:
            raise SupersededTrainer(f"epoch {pointer.epoch} of {pointer.policy} was superseded by {told}")
        await pointers.update(pointer.policy, value, revision=present.revision, deadline_s=deadline_s)
    except BusConflict:
        return False
    return True


def _told_epoch(value: bytes, *, policy: str) -> int:
    """What cannot be read was written by no trainer, and is replaced: the store's own pointer decides who is one."""
    try:
        return decode(value, WeightPointer).epoch
    except WireError as error:
        _log.error("pointer_replaced", policy=policy, reason=str(error))
        return 0
