"""What keeps the store usable beside the versions themselves: anchors for joiners, folds for those who were away, and
garbage collection. None of it delays a version: what needs the state is encoded to disk, and uploaded on the side.

Where several ranks publish, the one that signs says what is due, each rank stores its blocks of it, and tells so with a
later version; when all have, it is signed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import structlog

from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.wire.best_versions import BestVersions
from trimtab.fabric.wire.errors import WireError
from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec
from trimtab.weights.layout import StateLayout
from trimtab.weights.publishing_group import PublishingGroup
from trimtab.weights.spool import FoldBase, SpooledBlocks
from trimtab.weights.store.collection import CollectionRules, collect
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.kept import InvalidKept, KeptVersions, kept_after, position_of
from trimtab.weights.store.latest import CatalogueTooLarge, PointerRolledBack, SupersededTrainer
from trimtab.weights.store.leases import InvalidLease
from trimtab.weights.store.manifest import InvalidManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.stored_blocks import StoredBlocks, joined
from trimtab.weights.version_writer import Begin, EncodedBlock, VersionWriter, encoded_whole, in_order

_log = structlog.get_logger(__name__)
_UPLOAD_DEADLINE_S = 3600.0
_COLLECT_DEADLINE_S = 300.0
_KEEP_DEADLINE_S = 30.0
_FAILURES = (
    ObjectStoreError,
    BusError,
    WireError,
    OSError,
    InvalidKept,
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
    anchor_after_copies: int | None = None
    """An anchor is due too when the versions since the last one have taken as many bytes as so many of it."""
    fold_every: int | None
    collection: CollectionRules
    collect_every_s: float = 60.0


AskBest = Callable[[], Awaitable[BestVersions | None]]
"""Which versions did best; None where nobody says. Raises BusError: nothing is collected before it is known."""
What = Literal["anchor", "fold"]


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What is due with a version, the same for all ranks. `fold_base`: folds begin here from now on."""

    anchor: bool = False
    fold: bool = False
    fold_base: bool = False


class UpkeepPart(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank has stored of an anchor or fold; nothing where it failed, and then why."""

    what: What
    stored: StoredBlocks | None = None
    failure: str = ""
    base_lost: bool = False
    """It has no state that a fold could begin at."""


@dataclass(kw_only=True)
class _Due:
    """An anchor or fold on its way, on the rank that will sign it."""

    target: Position
    begin: Begin | None
    root: str
    layout: StateLayout
    parts: list[UpkeepPart] = field(default_factory=list)
    signing: bool = False
    claims: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Keeps what this rank has stored of it from being collected until it is signed."""


class Upkeep:
    """One for a publisher. With every version, before the baseline moves on, it is asked for orders where it signs, and
    has them carried out.
    """

    def __init__(
        self, writer: VersionWriter, manifests: ManifestReader, rules: UpkeepRules, *, group: PublishingGroup,
        folder: Path, codec: Codec, executor: ThreadPoolExecutor, threads: int, way_in: Sequence[Entry],
        clock: Callable[[], float], ask_best: AskBest | None = None,
    ) -> None:  # fmt: skip
        """`way_in` is what a joiner fetches of the versions that trainers before this one have published."""
        self._ask_best = ask_best
        self._writer = writer
        self._manifests = manifests
        self._rules = rules
        self._group = group
        self._folder = folder
        self._codec = codec
        self._executor = executor
        self._threads = threads
        self._clock = clock
        self._since_anchor = len(way_in)
        self._anchor_bytes = way_in[0].bytes if way_in else 0
        self._bytes_since_anchor = sum(entry.bytes for entry in way_in[1:])
        self._since_fold = 0
        self._fold_base: FoldBase | None = None
        self._due: dict[What, _Due] = {}
        self._finished: list[UpkeepPart] = []
        self._collected_at = clock()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def orders(self, entry: Entry) -> Orders:
        """With a new version. What is due while its like is under way waits its turn."""
        if entry.base is None:
            self._since_anchor, self._bytes_since_anchor, self._anchor_bytes = 0, 0, entry.bytes
        else:
            self._since_anchor += 1
            self._bytes_since_anchor += entry.bytes
        self._since_fold += 1
        every = self._rules.fold_every
        return Orders(
            anchor=(self._since_anchor >= self._rules.anchor_every or self._is_long()) and self._idle("anchor"),
            fold=every is not None and self._fold_base is not None and self._since_fold >= every and self._idle("fold"),
            fold_base=every is not None and self._fold_base is None and self._idle("fold"),
        )

    def _is_long(self) -> bool:
        """Whether joiners fetch, and the store keeps for them, many times what the weights are."""
        copies = self._rules.anchor_after_copies
        return copies is not None and 0 < copies * self._anchor_bytes <= self._bytes_since_anchor

    async def carry_out(self, orders: Orders, baseline: Baseline, position: Position) -> None:
        """Returns when the baseline is no longer needed."""
        if orders.anchor:
            jobs = [partial(encoded_whole, baseline, block) for block in baseline.own]
            if await self._spool("anchor", position, None, baseline, jobs):
                self._since_anchor = self._bytes_since_anchor = 0
        if orders.fold_base:
            try:
                self._fold_base = await asyncio.to_thread(FoldBase, baseline, position, self._folder)
            except OSError as error:
                self._fold_base = None
                self._report("fold", error)
            self._since_fold = 0
        if orders.fold:
            await self._fold(baseline, position)
        if self._group.signs:
            self._collect_when_due()

    def finished(self) -> tuple[UpkeepPart, ...]:
        """What this rank has stored since it was asked last, for the rank that signs."""
        finished, self._finished = tuple(self._finished), []
        return finished

    def heard(self, parts: Iterable[UpkeepPart]) -> None:
        """What ranks have stored; what all have stored is signed."""
        for part in parts:
            self._due[part.what].parts.append(part)
        for what, due in list(self._due.items()):
            if len(due.parts) == self._group.size and not due.signing:
                self._begin(f"signing of the {what}", self._sign(what, due))

    async def _fold(self, baseline: Baseline, position: Position) -> None:
        base = self._fold_base
        if base is None:
            self._finished.append(UpkeepPart(what="fold", failure="no state to begin at", base_lost=True))
            return
        begin = Begin(base.position, base.root)
        # Should anything fail half-way, the base is neither the old state nor the new one.
        self._fold_base = None
        jobs = [partial(base.encoded_fold, baseline, block, self._codec) for block in base.stale_blocks(baseline)]
        if await self._spool("fold", position, begin, baseline, jobs):
            base.moved_to(baseline, position)
            self._fold_base = base
            self._since_fold = 0

    async def _spool(
        self, what: What, position: Position, begin: Begin | None, baseline: Baseline,
        jobs: Iterable[Callable[[], EncodedBlock]],
    ) -> bool:  # fmt: skip
        """Encode now, upload on the side. Whether the first half went well."""
        if self._group.signs:
            self._due[what] = _Due(target=position, begin=begin, root=baseline.root, layout=baseline.layout)
        try:
            with contextlib.ExitStack() as closing:
                spooled = closing.enter_context(SpooledBlocks(self._folder))
                async for block in in_order(jobs, self._executor, ahead=self._threads):
                    await asyncio.to_thread(spooled.append, block)
                closing.pop_all()
        except OSError as error:
            self._report(what, error)
            await self._tell(UpkeepPart(what=what, failure=str(error), base_lost=what == "fold"))
            return False
        self._begin(what, self._upload(what, spooled))
        return True

    async def _upload(self, what: What, spooled: SpooledBlocks) -> None:
        publication = None
        if self._group.signs:
            publication = self._due[what].claims.enter_context(self._writer.in_flight.publication())
        try:
            with spooled:
                stored = await self._writer.store_blocks(
                    spooled.blocks(), publication=publication, deadline_s=_UPLOAD_DEADLINE_S
                )
        except _FAILURES as error:
            self._report(what, error)
            await self._tell(UpkeepPart(what=what, failure=str(error)))
        else:
            await self._tell(UpkeepPart(what=what, stored=stored))

    async def _tell(self, part: UpkeepPart) -> None:
        """Alone, it is all there is; otherwise it goes along with the next version."""
        if self._group.size > 1:
            self._finished.append(part)
            return
        due = self._due[part.what]
        due.parts.append(part)
        await self._sign(part.what, due)

    async def _sign(self, what: What, due: _Due) -> None:
        due.signing = True
        if any(part.base_lost for part in due.parts):
            self._fold_base = None
        stored = [part.stored for part in due.parts if part.stored is not None]
        if self._group.size > 1 and len(stored) < len(due.parts):
            self._report(what, f"ranks have failed: {'; '.join(part.failure for part in due.parts if part.failure)}")
        try:
            with due.claims, self._writer.in_flight.publication() as publication:
                if len(stored) == self._group.size:
                    await self._writer.sign(
                        due.target, joined(stored), begin=due.begin, root=due.root, layout=due.layout,
                        publication=publication, deadline_s=_UPLOAD_DEADLINE_S,
                    )  # fmt: skip
        finally:
            del self._due[what]

    def _collect_when_due(self) -> None:
        # What other ranks have stored and nobody signed yet, this process does not know to be counted on.
        unsigned = self._group.size > 1 and bool(self._due)
        due = self._clock() - self._collected_at >= self._rules.collect_every_s
        if due and not unsigned and self._idle("collection"):
            self._collected_at = self._clock()
            self._begin("collection", self._collect())

    async def finish(self) -> None:
        """At the policy's end: what was evaluated since the last collection may be the best."""
        try:
            await self._keep_best()
        except _FAILURES as error:
            self._report("best versions", error)

    async def _keep_best(self) -> tuple[Position, ...]:
        """Write down which versions stay for what they scored. Those that are being evaluated are given back: until
        their score is known they must not go either.
        """
        told = None if self._ask_best is None else await self._ask_best()
        if told is None:
            return ()
        latest = await self._writer.pointer.read(deadline_s=_KEEP_DEADLINE_S)
        if latest is None:
            return ()
        stored = KeptVersions(self._writer.store, self._writer.policy)
        known = await stored.read(deadline_s=_KEEP_DEADLINE_S)
        kept = kept_after(known, told.best, latest)
        if kept != known:
            await stored.write(kept, deadline_s=_KEEP_DEADLINE_S)
            _log.info("best_versions_kept", versions={one.benchmark: str(one.position) for one in kept.versions})
        position = None if told.evaluating is None else position_of(latest, told.evaluating)
        return () if position is None else (position,)

    async def _collect(self) -> None:
        evaluating = await self._keep_best()
        collected = await collect(
            self._writer.store,
            self._writer.policy,
            epoch=self._writer.epoch,
            rules=self._rules.collection,
            pointer=self._writer.pointer,
            manifests=self._manifests,
            in_flight=self._writer.in_flight,
            evaluating=evaluating,
            deadline_s=_COLLECT_DEADLINE_S,
        )
        if collected.deleted:
            _log.info("weights_collected", objects=len(collected.deleted), freed_bytes=collected.freed_bytes)

    def _idle(self, what: str) -> bool:
        return what not in self._due and (what not in self._tasks or self._tasks[what].done())

    def _begin(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        async def reported() -> None:
            try:
                await work
            except _FAILURES as error:
                self._report(what, error)

        self._tasks[what] = asyncio.create_task(reported())

    def _report(self, what: str, error: BaseException | str) -> None:
        """Versions do not depend on upkeep: a failure is told, and the work is due again later."""
        _log.warning("upkeep_failed", what=what, policy=self._writer.policy, error=str(error))

    async def flush(self) -> None:
        """Wait for what is under way; each has its own deadline."""
        await asyncio.gather(*self._tasks.values())

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
