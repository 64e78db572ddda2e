"""Publishes versions of a policy's weights. The trainer calls `capture` between two steps, which takes a few times as
long as copying the model, and `publish` runs beside the next ones. Of a trainer with several ranks each has one of
these: it stores the blocks that the rank owns, and on the first rank it signs what all have stored.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec
import structlog

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.errors import BusConflict, BusNotFound, BusTimeout
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.weights.baseline import Baseline, Captured, WeightChanges, WeightShare, WeightSource
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.digests import root_digest
from trimtab.weights.publishing_group import Alone, PublishingGroup, told_by_all, told_by_signer
from trimtab.weights.store.chunk_writer import CHUNK_BYTES
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, cheapest_route, joinable
from trimtab.weights.stored_blocks import StoredBlocks, joined
from trimtab.weights.upkeep import AskBest, Orders, Upkeep, UpkeepPart, UpkeepRules
from trimtab.weights.version_writer import Begin, EncodedBlock, VersionWriter, encoded_change, encoded_whole, in_order

_log = structlog.get_logger(__name__)
_MOST_THREADS = 16
_CONFLICT_BACKOFF = FullJitter(base_s=0.05, cap_s=1.0)


class _Part(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has stored of a version, and of anchors and folds of earlier ones."""

    stored: StoredBlocks
    upkeep: tuple[UpkeepPart, ...]


class _Signed(msgspec.Struct, frozen=True, kw_only=True):
    """A version is public."""

    entry: Entry
    orders: Orders


class _Continued(msgspec.Struct, frozen=True, kw_only=True):
    """The published version that a trainer's first one is the same as, if there is one."""

    base: Position | None


class _UnderWay:
    """A version that is not signed yet. What ranks have told one another about it is not asked for again when a part of
    publishing it is repeated, and what is stored of it is not collected.
    """

    def __init__(self, target: Position, in_flight: InFlight) -> None:
        self.target = target
        self._claims = ExitStack()
        self.publication = self._claims.enter_context(in_flight.publication())
        self.continued: _Continued | None = None
        self.stored: StoredBlocks | None = None

    def close(self) -> None:
        self._claims.close()


def _way_in(latest: Latest) -> tuple[Entry, ...]:
    """What a joiner fetches; empty where there is nothing yet."""
    try:
        return cheapest_route(latest, None).entries
    except NoRoute:
        return ()


class WeightPublisher:
    """The publishing end of one policy. Made by `open`, which claims the epoch; `close` it."""

    def __init__(
        self, writer: VersionWriter, pointers: KeyValue, claimed: Latest, rules: UpkeepRules, *, group: PublishingGroup,
        job: str, folder: Path, codec: Codec, threads: int, ask_best: AskBest | None = None,
    ) -> None:  # fmt: skip
        self._writer = writer
        self._pointers = pointers
        self._claimed = claimed
        self._group = group
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
            writer, manifests, rules, group=group, folder=folder, codec=codec, executor=self._executor, threads=threads,
            way_in=_way_in(claimed), clock=writer.clock, ask_best=ask_best,
        )  # fmt: skip
        self._baseline: Baseline | None = None
        self._under_way: _UnderWay | None = None
        self._published: Entry | None = None
        self._orders: Orders | None = None

    @classmethod
    async def open(
        cls, store: ObjectStore, pointers: KeyValue, *, job: str, policy: str, signer: Signer, rules: UpkeepRules,
        folder: Path, codec: Codec = Codec.AUTO, threads: int | None = None, clock: Callable[[], float],
        deadline_s: float, chunk_bytes: int = CHUNK_BYTES, group: PublishingGroup | None = None,
        epoch_at_least: int = 1,
        ask_best: AskBest | None = None,
    ) -> WeightPublisher:  # fmt: skip
        """`folder` is scratch space on disk: for anchors before they are uploaded, and for the state folds begin at.
        The ranks of a group open it together. With `ask_best` the best versions are never collected.
        """
        group = group or Alone()
        pointer = LatestPointer(store, policy)
        claimed = await pointer.claim_epoch(at_least=epoch_at_least, deadline_s=deadline_s) if group.signs else None
        epoch = await told_by_signer(group, None if claimed is None else claimed.epoch, int)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        await asyncio.to_thread(folder.mkdir, parents=True)
        writer = VersionWriter(
            store=store, pointer=pointer, in_flight=InFlight(), policy=policy, epoch=epoch, signer=signer,
            clock=clock, chunk_bytes=chunk_bytes,
        )  # fmt: skip
        threads = threads or min(_MOST_THREADS, os.cpu_count() or 1)
        claimed = claimed or Latest(epoch=epoch)
        return cls(
            writer, pointers, claimed, rules, group=group, job=job, folder=folder, codec=codec, threads=threads,
            ask_best=ask_best,
        )  # fmt: skip

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    def capture(self, source: WeightSource | WeightShare | WeightChanges) -> Captured:
        """What `publish` needs to know of the weights as they are now. Not while a publication is under way."""
        if isinstance(source, WeightChanges):
            assert self._baseline is not None, "the first capture is of all weights"
            return self._baseline.take(source)
        if self._baseline is None:
            own = source.own if isinstance(source, WeightShare) else None
            self._baseline = Baseline(source.layout, self._folder, self._executor, own=own)
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
        if self._published is None or self._published.target != target:
            await self._publish_new(target, captured, baseline, deadline_s=deadline_s)
        entry = self._published
        assert entry is not None
        pointer = self._pointer(entry)
        if self._group.signs:
            await announce(self._pointers, pointer, deadline_s=deadline_s)
            _log.info(
                "weights_published", policy=pointer.policy, version=version, base=pointer.base_version,
                bytes=entry.bytes,
            )  # fmt: skip
        if self._orders is not None:
            orders, self._orders = self._orders, None
            await self._upkeep.carry_out(orders, baseline, target)
        return pointer

    async def finish(self) -> None:
        """The policy has had its last version."""
        if self._group.signs:
            await self._upkeep.finish()

    async def flush(self) -> None:
        """Wait for anchors and folds that are still on their way."""
        await self._upkeep.flush()

    async def close(self) -> None:
        await self._upkeep.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _publish_new(
        self, target: Position, captured: Captured, baseline: Baseline, *, deadline_s: float
    ) -> None:
        under_way, previous = self._on_its_way(target), self._published
        if previous is None:
            # Nothing, unless an earlier first version never got out.
            await asyncio.to_thread(baseline.advance, captured, baseline.digests)
            begin = await self._continued(baseline, under_way)
            blocks = () if begin is not None else baseline.own
            jobs = [partial(encoded_whole, baseline, block) for block in blocks]
        else:
            begin = Begin(previous.target, previous.root)
            jobs = [
                partial(encoded_change, baseline, baseline.layout.blocks[index], change, self._codec)
                for index, change in sorted(captured.changes.items())
            ]
        stored = await self._stored(jobs, under_way, deadline_s=deadline_s)
        digests = list(baseline.digests)
        for index, digest in stored.digests().items():
            digests[index] = digest
        signed = None
        if self._group.signs:
            entry = await self._writer.sign(
                target, stored, begin=begin, root=root_digest(baseline.layout, digests), layout=baseline.layout,
                publication=under_way.publication, deadline_s=deadline_s,
            )  # fmt: skip
            signed = _Signed(entry=entry, orders=self._upkeep.orders(entry))
        signed = await told_by_signer(self._group, signed, _Signed)
        # From here on the version is public; what follows is only about the next one.
        self._published, self._orders = signed.entry, signed.orders
        under_way.close()
        if previous is not None:
            await asyncio.to_thread(baseline.advance, captured, digests)

    def _on_its_way(self, target: Position) -> _UnderWay:
        if self._under_way is None or self._under_way.target != target:
            if self._under_way is not None:
                self._under_way.close()
            self._under_way = _UnderWay(target, self._writer.in_flight)
        return self._under_way

    async def _continued(self, baseline: Baseline, under_way: _UnderWay) -> Begin | None:
        """A trainer that resumes where a published version was goes on from it; otherwise everything is new."""
        if under_way.continued is None:
            own = await asyncio.to_thread(baseline.hash_own)
            baseline.know(*await told_by_all(self._group, own, dict[int, bytes]))
            word = self._known(baseline.root, under_way.target) if self._group.signs else None
            under_way.continued = await told_by_signer(self._group, word, _Continued)
        base = under_way.continued.base
        return None if base is None else Begin(base, baseline.root)

    def _known(self, root: str, target: Position) -> _Continued:
        same = {entry.target for entry in self._claimed.catalogue if entry.root == root and entry.target < target}
        # What builds on a version without an anchor could not be pulled by joiners, nor by holders of dead lineages.
        return _Continued(base=max(same & joinable(self._claimed), default=None))

    async def _stored(
        self, jobs: Iterable[Callable[[], EncodedBlock]], under_way: _UnderWay, *, deadline_s: float
    ) -> StoredBlocks:
        """The blocks of all ranks, when all have stored theirs."""
        if under_way.stored is None:
            own = await self._writer.store_blocks(
                in_order(jobs, self._executor, ahead=self._threads),
                publication=under_way.publication if self._group.signs else None,
                deadline_s=deadline_s,
            )
            parts = await told_by_all(self._group, _Part(stored=own, upkeep=self._upkeep.finished()), _Part)
            under_way.stored = joined(part.stored for part in parts)
            if self._group.signs:
                self._upkeep.heard(told for part in parts for told in part.upkeep)
        return under_way.stored

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
