"""What keeps the store usable beside the versions themselves: anchors for joiners, folds for those who were away, and
garbage collection. None of it delays a version: what needs the state is encoded to disk, and uploaded on the side.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import structlog

from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, Encoded, Mode, encode_change
from trimtab.weights.codec.change import apply_change, find_change
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import Block
from trimtab.weights.store.collection import CollectionRules, collect
from trimtab.weights.store.latest import CatalogueTooLarge, PointerRolledBack, SupersededTrainer
from trimtab.weights.store.leases import InvalidLease
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.version_writer import Begin, EncodedBlock, VersionWriter, encoded_whole, in_order

_log = structlog.get_logger(__name__)
_UPLOAD_DEADLINE_S = 3600.0
_COLLECT_DEADLINE_S = 300.0
_FAILURES = (
    ObjectStoreError,
    OSError,
    InvalidLease,
    InvalidManifest,
    PointerRolledBack,
    CatalogueTooLarge,
    # The next version finds out too, and stops the trainer.
    SupersededTrainer,
)


@dataclass(frozen=True, kw_only=True)
class UpkeepRules:
    """In versions published. `fold_every` of 1 would repeat the single deltas, so 2 is the least; None folds never."""

    anchor_every: int
    fold_every: int | None
    collection: CollectionRules
    collect_every_s: float = 60.0


class Upkeep:
    """One for a publisher. `after` is to be called with every version, before the baseline moves on."""

    def __init__(
        self, writer: VersionWriter, manifests: ManifestReader, rules: UpkeepRules, *, folder: Path, codec: Codec,
        executor: ThreadPoolExecutor, threads: int, since_anchor: int, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        """`since_anchor` counts the versions that trainers before this one have published since the last anchor."""
        self._writer = writer
        self._manifests = manifests
        self._rules = rules
        self._folder = folder
        self._codec = codec
        self._executor = executor
        self._threads = threads
        self._clock = clock
        self._since_anchor = since_anchor
        self._since_fold = 0
        self._fold_base: FoldBase | None = None
        self._collected_at = clock()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def after(self, baseline: Baseline, position: Position, *, was_anchor: bool) -> None:
        """Returns when the baseline is no longer needed. What is due while its like is under way waits its turn."""
        self._since_anchor = 0 if was_anchor else self._since_anchor + 1
        self._since_fold += 1
        if self._since_anchor >= self._rules.anchor_every and self._idle("anchor"):
            jobs = [partial(encoded_whole, baseline, block) for block in baseline.layout.blocks]
            if await self._spool("anchor", position, None, baseline, jobs):
                self._since_anchor = 0
        if self._rules.fold_every is not None:
            await self._fold(baseline, position, every=self._rules.fold_every)
        if self._clock() - self._collected_at >= self._rules.collect_every_s and self._idle("collection"):
            self._collected_at = self._clock()
            self._begin("collection", self._collect())

    async def _fold(self, baseline: Baseline, position: Position, *, every: int) -> None:
        if self._fold_base is None:
            try:
                self._fold_base = await asyncio.to_thread(FoldBase, baseline, position, self._folder)
            except OSError as error:
                self._report("fold", error)
            self._since_fold = 0
        elif self._since_fold >= every and self._idle("fold"):
            base = self._fold_base
            begin = Begin(base.position, base.root)
            # Should anything fail half-way, the base is neither the old state nor the new one.
            self._fold_base = None
            jobs = [
                partial(base.encoded_fold, baseline, block, self._codec)
                for block in baseline.layout.blocks
                if base.digests[block.index] != baseline.digests[block.index]
            ]
            if await self._spool("fold", position, begin, baseline, jobs):
                base.moved_to(baseline, position)
                self._fold_base = base
                self._since_fold = 0

    async def _spool(
        self, what: str, position: Position, begin: Begin | None, baseline: Baseline,
        jobs: Iterable[Callable[[], EncodedBlock]],
    ) -> bool:  # fmt: skip
        """Encode now, upload on the side. Whether the first half went well."""
        try:
            with contextlib.ExitStack() as closing:
                spooled = closing.enter_context(SpooledBlocks(self._folder))
                async for block in in_order(jobs, self._executor, ahead=self._threads):
                    await asyncio.to_thread(spooled.append, block)
                closing.pop_all()
        except OSError as error:
            self._report(what, error)
            return False
        root, layout = baseline.root, baseline.layout

        async def upload() -> None:
            with spooled:
                await self._writer.write(
                    position, spooled.blocks(), begin=begin, root=lambda _: root, layout=layout,
                    deadline_s=_UPLOAD_DEADLINE_S,
                )  # fmt: skip

        self._begin(what, upload())
        return True

    async def _collect(self) -> None:
        collected = await collect(
            self._writer.store,
            self._writer.policy,
            epoch=self._writer.epoch,
            rules=self._rules.collection,
            pointer=self._writer.pointer,
            manifests=self._manifests,
            in_flight=self._writer.in_flight,
            deadline_s=_COLLECT_DEADLINE_S,
        )
        if collected.deleted:
            _log.info("weights_collected", objects=len(collected.deleted), freed_bytes=collected.freed_bytes)

    def _idle(self, what: str) -> bool:
        return what not in self._tasks or self._tasks[what].done()

    def _begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        async def reported() -> None:
            try:
                await work
            except _FAILURES as error:
                self._report(what, error)

        self._tasks[what] = asyncio.create_task(reported())

    def _report(self, what: str, error: BaseException) -> None:
        """Versions do not depend on upkeep: a failure is told, and the work is due again later."""
        _log.warning("upkeep_failed", what=what, policy=self._writer.policy, error=str(error))

    async def flush(self) -> None:
        """Wait for what is under way; each has its own deadline."""
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


class FoldBase:
    """An earlier state, kept on disk, that a folded delta begins at: one hop for a pool that was away for many
    versions. It is a file without a name, of which nothing is left behind, in page cache that the kernel can drop.
    """

    def __init__(self, baseline: Baseline, position: Position, folder: Path) -> None:
        self._layout = baseline.layout
        with tempfile.TemporaryFile(dir=folder) as file:
            self._data = np.memmap(file, dtype=np.uint8, mode="w+", shape=(max(1, baseline.layout.data_bytes),))
        for block in baseline.layout.blocks:
            self._data[block.start : block.end] = baseline.block(block)
        self.moved_to(baseline, position)

    @property
    def root(self) -> str:
        return root_digest(self._layout, self.digests)

    def moved_to(self, baseline: Baseline, position: Position) -> None:
        self.position = position
        self.digests = list(baseline.digests)

    def encoded_fold(self, baseline: Baseline, block: Block, codec: Codec) -> EncodedBlock:
        """From here to the baseline; afterwards the block here is the baseline's."""
        here = np.asarray(self._data[block.start : block.end])
        change = find_change(here, baseline.block(block), width=block.element.width)
        assert change is not None, "blocks with different digests differ"
        encoded = encode_change(here, change, block.element, codec=codec)
        apply_change(change, here, width=block.element.width)
        return EncodedBlock(block.index, encoded, self.digests[block.index], baseline.digests[block.index])


@dataclass(frozen=True)
class _Kept:
    block: int
    mode: Mode
    size: int
    base: bytes | None
    digest: bytes


class SpooledBlocks:
    """Encoded blocks on disk: anchors and folds are encoded at once, while the state is at hand, and uploaded when
    there is time. Written once, read once or more, gone when closed.
    """

    def __init__(self, folder: Path) -> None:
        self._file: BinaryIO = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 (closed by close)
        self._kept: list[_Kept] = []

    def append(self, block: EncodedBlock) -> None:
        self._file.write(block.encoded.payload)
        self._kept.append(_Kept(block.block, block.encoded.mode, len(block.encoded.payload), block.base, block.digest))

    async def blocks(self) -> AsyncIterator[EncodedBlock]:
        self._file.seek(0)
        for kept in self._kept:
            payload = await asyncio.to_thread(self._file.read, kept.size)
            yield EncodedBlock(kept.block, Encoded(kept.mode, payload), kept.base, kept.digest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
