"""Garbage collection: takes from the catalogue what no pool needs, and from the store what nothing refers to.

An object goes in two steps at least `grace_s` apart: one run condemns it, a later run that still finds it unreferenced
deletes it. In between a reader of an older catalogue can pin it with a lease. Only the trainer that holds the epoch
collects, and it leaves the folders of later epochs alone, so one that was superseded meanwhile does no harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import structlog

from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound, StoreTimeout
from trimtab.fabric.objects.upload import all_or_first_error
from trimtab.weights.store.condemned import CondemnedList
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.kept import KeptVersions
from trimtab.weights.store.keys import ChunkName, LeaseName, ManifestName, Name, parse_key, policy_prefix
from trimtab.weights.store.latest import Latest, LatestPointer, SupersededTrainer
from trimtab.weights.store.leases import Lease, is_expired, read_leases
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.retention import retained
from trimtab.weights.store.store_clock import modified_at, store_now

_log = structlog.get_logger(__name__)
_PARALLEL = 8
Names = dict[str, Name | None]


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a run did. `condemned` are the keys a later run may delete, `unknown` those that nothing here writes."""

    dropped: tuple[Entry, ...]
    condemned: tuple[str, ...]
    deleted: tuple[str, ...]
    freed_bytes: int
    unknown: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CollectionRules:
    """`grace_s` must be longer than a publication takes from its first chunk to the pointer, and than a member takes
    from reading the pointer to writing its lease.
    """

    keep_versions: int
    lease_ttl_s: float
    grace_s: float
    copies: int | None = None
    """Fewer versions are kept where they would take more bytes than so many whole copies."""


async def collect(
    store: ObjectStore,
    policy: str,
    *,
    epoch: int,
    rules: CollectionRules,
    pointer: LatestPointer,
    manifests: ManifestReader,
    in_flight: InFlight,
    evaluating: Collection[Position] = (),
    deadline_s: float,
) -> Collected:
    """One run. Raises SupersededTrainer when a newer epoch was claimed; a manifest or lease that cannot be read stops
    it before anything is deleted. It can be repeated after any error. What is `evaluating` may turn out the best, so it
    is kept as that is.
    """
    run = _Run(store, policy, epoch, rules, pointer, manifests, frozenset(evaluating), deadline_s)
    try:
        # Watched from before the catalogue is read: what a publication adds to it later was claimed in this time.
        with in_flight.watched() as claimed:
            async with asyncio.timeout(deadline_s):
                dropped = await run.drop_entries()
                now = await store_now(store, policy, deadline_s=deadline_s)
                listed = [info async for info in store.scan(policy_prefix(policy), deadline_s=deadline_s)]
                names = {info.key: parse_key(policy, info.key) for info in listed}
                # After the listing, so that everything listed and committed by now is seen to be referenced.
                referenced = await run.referenced(names)
                garbage = [
                    info
                    for info in listed
                    if info.key not in referenced
                    and is_garbage(info, names[info.key], now=now, epoch=epoch, rules=rules)
                ]
                register = CondemnedList(store, policy)
                since = await register.read(deadline_s=deadline_s)
                due = [info for info in garbage if info.key in since and since[info.key] <= now - rules.grace_s]
                deleted = await run.delete(due, names, claimed=claimed, in_flight=in_flight)
                gone = {info.key for info in deleted}
                waiting = {info.key: since.get(info.key, now) for info in garbage if info.key not in gone | claimed}
                if waiting != since and not await register.write(waiting, deadline_s=deadline_s):
                    _log.info("condemned_by_another_collector", policy=policy)
    except TimeoutError:
        raise StoreTimeout(f"collection of {policy}: not done within {deadline_s:.3g} s") from None
    return Collected(
        dropped=dropped,
        condemned=tuple(waiting),
        deleted=tuple(info.key for info in deleted),
        freed_bytes=sum(info.size for info in deleted),
        unknown=tuple(key for key, name in names.items() if name is None),
    )


@dataclass(frozen=True)
class _Run:
    store: ObjectStore
    policy: str
    epoch: int
    rules: CollectionRules
    pointer: LatestPointer
    manifests: ManifestReader
    evaluating: frozenset[Position]
    deadline_s: float

    async def drop_entries(self) -> tuple[Entry, ...]:
        held = {lease.held for lease in await self._leases() if lease.held is not None}
        best = (await KeptVersions(self.store, self.policy).read(deadline_s=self.deadline_s)).positions
        dropped: tuple[Entry, ...] = ()

        def keep_needed(latest: Latest) -> Latest:
            nonlocal dropped
            rules, needed = self.rules, best | self.evaluating
            kept = set(retained(latest, held, keep_versions=rules.keep_versions, kept=needed, copies=rules.copies))
            dropped = tuple(entry for entry in latest.catalogue if entry not in kept)
            return latest.keeping(kept)

        await self.pointer.update(keep_needed, epoch=self.epoch, deadline_s=self.deadline_s)
        return dropped

    async def referenced(self, names: Names) -> set[str]:
        latest = await self.pointer.read(deadline_s=self.deadline_s)
        if latest is None or latest.epoch != self.epoch:
            raise SupersededTrainer(f"epoch {self.epoch} of {self.policy} was superseded during its collection")
        return await referenced_keys(
            self.policy, latest.catalogue, await self._leases(), names, self.manifests, deadline_s=self.deadline_s
        )

    async def delete(
        self, due: list[ObjectInfo], names: Names, *, claimed: set[str], in_flight: InFlight
    ) -> list[ObjectInfo]:
        """Manifests first: as long as one is there, so are its chunks."""
        turn = asyncio.Semaphore(_PARALLEL)
        deleted: list[ObjectInfo] = []

        async def delete_one(info: ObjectInfo) -> None:
            async with turn:
                if info.key in claimed:
                    return
                with in_flight.deleting(info.key):
                    await self.store.delete(info.key, deadline_s=self.deadline_s)
            deleted.append(info)

        manifests = [info for info in due if isinstance(names[info.key], ManifestName)]
        others = [info for info in due if not isinstance(names[info.key], ManifestName)]
        await all_or_first_error(delete_one(info) for info in manifests)
        await all_or_first_error(delete_one(info) for info in others)
        return deleted

    async def _leases(self) -> tuple[Lease, ...]:
        return await read_leases(self.store, self.policy, ttl_s=self.rules.lease_ttl_s, deadline_s=self.deadline_s)


async def referenced_keys(
    policy: str,
    catalogue: Iterable[Entry],
    leases: Iterable[Lease],
    names: Names,
    manifests: ManifestReader,
    *,
    deadline_s: float,
) -> set[str]:
    """Keys of the manifests in the catalogue and under the leases' pins, and of their chunks."""
    entries = {entry.key(policy): entry for entry in catalogue}
    pins = {sha256 for lease in leases for sha256 in lease.pins}
    pinned = {
        key: name.sha256
        for key, name in names.items()
        if isinstance(name, ManifestName) and name.sha256 in pins and key not in entries
    }
    turn = asyncio.Semaphore(_PARALLEL)

    async def chunks_of(entry: Entry) -> set[str]:
        async with turn:
            return set((await manifests.read(entry, deadline_s=deadline_s)).chunk_keys())

    async def chunks_of_pinned(key: str, sha256: str) -> set[str]:
        async with turn:
            try:
                return set((await manifests.read_pinned(key, sha256, deadline_s=deadline_s)).chunk_keys())
            except ObjectNotFound:
                return set()  # another collector was faster, and the member that pinned it will find it gone

    jobs = [chunks_of(entry) for entry in entries.values()]
    jobs += [chunks_of_pinned(key, sha256) for key, sha256 in pinned.items()]
    return set(entries).union(pinned, *await all_or_first_error(jobs))


def is_garbage(info: ObjectInfo, name: Name | None, *, now: float, epoch: int, rules: CollectionRules) -> bool:
    """Of what is not referenced: only what is of an epoch up to ours and has been there for the grace period."""
    written_at = modified_at(info)
    if now - written_at < rules.grace_s:
        return False
    match name:
        case ChunkName(epoch=written_in) | ManifestName(epoch=written_in):
            return written_in <= epoch
        case LeaseName():
            return is_expired(written_at, now=now, ttl_s=rules.lease_ttl_s)
        case _:
            return False
