"""The pointer to a policy's newest weights and the catalogue of the ways there, moved by compare-and-swap and fenced by
epochs.

A trainer that starts claims the next epoch. A trainer that holds an older one can write nothing more: two trainers of
one policy, one of which should be dead, can never interleave their versions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import count

import msgspec

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.errors import ObjectNotFound, PreconditionFailed, StoreTimeout
from trimtab.fabric.wire.values import Version
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.keys import latest_key
from trimtab.weights.store.position import Position

FORMAT = 1
MAX_POINTER_BYTES = 1 << 20
_CONFLICT_BACKOFF = FullJitter(base_s=0.05, cap_s=2.0)


class SupersededTrainer(RuntimeError):
    """Another trainer of the same policy has claimed a newer epoch: this one must stop."""


class InvalidPointer(ValueError):
    """The pointer in the store is not one that this version writes."""


class PointerRolledBack(RuntimeError):
    """The store shows an older pointer than it did before, or none: it was restored or emptied under us."""


class CatalogueTooLarge(RuntimeError):
    """The catalogue has more entries than a pointer can carry."""


class Latest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`epoch` is the newest one claimed, `newest` the newest position published, which may be of an earlier epoch.

    `writer` is new in every write: stores derive ETags from the content, and two that write the same must not both
    think that they won.
    """

    format: int = FORMAT
    epoch: Version
    newest: Position | None = None
    catalogue: tuple[Entry, ...] = ()
    writer: str = ""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"it has format {self.format}; this version reads {FORMAT}")
        roots: dict[Position, str] = {}
        edges: set[tuple[Position, Position | None]] = set()
        for entry in self.catalogue:
            if roots.setdefault(entry.target, entry.root) != entry.root:
                raise ValueError(f"{entry.target} has two different roots")
            if (entry.target, entry.base) in edges:
                raise ValueError(f"{entry} is there twice")
            edges.add((entry.target, entry.base))
        newest = max(roots, default=None)
        if newest != self.newest:
            raise ValueError(f"the newest entry leads to {newest}, the pointer says {self.newest}")
        if newest is not None and newest.epoch > self.epoch:
            raise ValueError(f"{newest} is published, but only epoch {self.epoch} claimed")

    def adding(self, *entries: Entry) -> Latest:
        """With these entries, each instead of an older one between the same positions. Adding twice changes nothing."""
        edges = {(entry.target, entry.base): entry for entry in (*self.catalogue, *entries)}
        newest = max(entry.target for entry in edges.values()) if edges else None
        return msgspec.structs.replace(self, catalogue=tuple(edges.values()), newest=newest)

    def keeping(self, entries: Iterable[Entry]) -> Latest:
        """Without all entries but these; one to the newest position must be among them."""
        kept = set(entries)
        return msgspec.structs.replace(self, catalogue=tuple(entry for entry in self.catalogue if entry in kept))


class LatestPointer:
    """One policy's pointer. Remembers how far it has seen it, so that a store that goes back in time is noticed."""

    def __init__(self, store: ObjectStore, policy: str, *, backoff: FullJitter = _CONFLICT_BACKOFF) -> None:
        self._store = store
        self._key = latest_key(policy)
        self._backoff = backoff
        self._seen: Latest | None = None
        self._written: tuple[Latest, str] | None = None

    async def read(self, *, deadline_s: float) -> Latest | None:
        """None before the first trainer has claimed an epoch."""
        return (await self._load(deadline_s=deadline_s))[0]

    async def claim_epoch(self, *, at_least: int = 1, deadline_s: float) -> Latest:
        """Become the writer by raising the epoch; of two that try at once, the second raises the first's. A store that
        lost its newest writes may show an older epoch: `at_least` is one that no trainer before has claimed.
        """

        def raised(present: Latest | None) -> Latest:
            present = present or Latest(epoch=0)
            return msgspec.structs.replace(present, epoch=max(present.epoch + 1, at_least))

        claimed = await self._swap(raised, deadline_s=deadline_s)
        await self._store.sync(deadline_s=deadline_s)
        return claimed

    async def update(self, change: Callable[[Latest], Latest], *, epoch: int, deadline_s: float) -> Latest:
        """Apply `change` to what is there. It is called again with what others wrote in between, so it must only add to
        or take from what it is given. After an error the same update can be repeated: a change that is there already
        is recognised.
        """

        def changed(present: Latest | None) -> Latest:
            if present is None or present.epoch < epoch:
                raise PointerRolledBack(
                    f"{self._where} no longer knows epoch {epoch}: the bucket was emptied or restored; "
                    "restart the trainer to claim an epoch anew"
                )
            if present.epoch > epoch:
                raise SupersededTrainer(f"epoch {epoch} of {self._where} was superseded by epoch {present.epoch}")
            wanted = change(present)
            if wanted.epoch != epoch:
                raise ValueError(f"an update cannot change the epoch from {epoch} to {wanted.epoch}")
            if present.newest is not None and (wanted.newest is None or wanted.newest < present.newest):
                raise ValueError(f"an update cannot go back from {present.newest} to {wanted.newest}")
            return wanted

        return await self._swap(changed, deadline_s=deadline_s)

    @property
    def _where(self) -> str:
        return self._store.where(self._key)

    async def _swap(self, change: Callable[[Latest | None], Latest], *, deadline_s: float) -> Latest:
        try:
            async with asyncio.timeout(deadline_s):
                for attempt in count():
                    # What we wrote last is mostly what is there: believing so saves a round trip, and where it is not
                    # so the swap fails.
                    known = self._written if attempt == 0 else None
                    present, etag = known or await self._load(deadline_s=deadline_s)
                    wanted = change(present)
                    if wanted == present:
                        return wanted
                    wanted = msgspec.structs.replace(wanted, writer=self._store.new_write_id())
                    self._written = None
                    try:
                        written = await self._write(wanted, etag=etag, deadline_s=deadline_s)
                    except PreconditionFailed:
                        await asyncio.sleep(self._backoff.delay_s(attempt) if known is None else 0.0)
                    else:
                        self._note(wanted, floor=present)
                        self._written = wanted, written
                        return wanted
        except TimeoutError:
            pass
        raise StoreTimeout(f"{self._where} could not be moved within {deadline_s:.3g} s")

    async def _write(self, latest: Latest, *, etag: str | None, deadline_s: float) -> str:
        """The ETag it has now."""
        body = msgspec.json.encode(latest)
        if len(body) > MAX_POINTER_BYTES:
            raise CatalogueTooLarge(
                f"{self._where} would have {len(body)} bytes with {len(latest.catalogue)} entries, more than "
                f"{MAX_POINTER_BYTES}; keep fewer versions, or let the collection run more often"
            )
        if etag is None:
            info = await put_if_absent(self._store, self._key, body, deadline_s=deadline_s)
        else:
            info = await compare_and_swap(self._store, self._key, body, etag=etag, deadline_s=deadline_s)
        return info.etag

    async def _load(self, *, deadline_s: float) -> tuple[Latest | None, str | None]:
        # What others see while this read is under way says nothing about it, hence the floor from before.
        floor = self._seen
        try:
            stored = await self._store.get(self._key, max_bytes=MAX_POINTER_BYTES, deadline_s=deadline_s)
        except ObjectNotFound:
            if floor is not None:
                raise PointerRolledBack(f"{self._where} is gone; it was at epoch {floor.epoch}") from None
            return None, None
        try:
            latest = msgspec.json.decode(stored.body, type=Latest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidPointer(f"{self._where} is malformed: {error}") from None
        self._note(latest, floor=floor)
        return latest, stored.info.etag

    def _note(self, latest: Latest, *, floor: Latest | None) -> None:
        if floor is not None and (latest.epoch < floor.epoch or _newest(latest) < _newest(floor)):
            raise PointerRolledBack(
                f"{self._where} went back from epoch {floor.epoch}, {floor.newest}, to epoch {latest.epoch}, "
                f"{latest.newest}: the bucket was restored or someone replays an old pointer"
            )
        seen = self._seen
        if seen is None or latest.epoch > seen.epoch or _newest(latest) > _newest(seen):
            self._seen = latest


def _newest(latest: Latest) -> Position:
    return latest.newest or Position(0, 0)
