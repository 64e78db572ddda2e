"""Versions that stay for what they scored, however old they are: the best on each benchmark.

They stand in an object of their own beside the pointer, so that whoever collects, and whoever looks for the best
version after the job has ended, needs nothing but the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.wire.best_versions import BestVersion
from trimtab.weights.store.keys import kept_key
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import joinable

FORMAT = 1
MAX_KEPT_BYTES = 1 << 20


class InvalidKept(ValueError):
    """The object cannot be read: what is to be kept is unknown, so nothing may be deleted."""


class KeptVersion(msgspec.Struct, frozen=True, kw_only=True):
    """The best on a benchmark, and where it lies: a trainer that went back makes a version of the same number anew."""

    benchmark: str
    position: Position
    score: float


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """Fields of a later release are ignored."""

    format: int = FORMAT
    versions: tuple[KeptVersion, ...] = ()

    @property
    def positions(self) -> frozenset[Position]:
        return frozenset(version.position for version in self.versions)

    def of(self, benchmark: str) -> KeptVersion | None:
        return next((version for version in self.versions if version.benchmark == benchmark), None)


NOTHING_KEPT = Kept()


def kept_after(known: Kept, best: Iterable[BestVersion], latest: Latest) -> Kept:
    """One version by benchmark. What is told as before stays where it was found then; a version that cannot be fetched
    any more is not kept, as it cannot be.
    """
    found: dict[str, KeptVersion] = {}
    for one in best:
        before = known.of(one.benchmark)
        position = (
            before.position
            if before is not None and (before.position.version, before.score) == (one.version, one.score)
            else position_of(latest, one.version)
        )
        if position is not None:
            found[one.benchmark] = KeptVersion(benchmark=one.benchmark, position=position, score=one.score)
    return Kept(versions=tuple(found[benchmark] for benchmark in sorted(found)))


def position_of(latest: Latest, version: int) -> Position | None:
    """Of several lineages the newest one's; None where it cannot be fetched."""
    return max((position for position in joinable(latest) if position.version == version), default=None)


@dataclass(frozen=True)
class KeptVersions:
    """What is kept of one policy, in the store. Its trainer alone writes it."""

    store: ObjectStore
    policy: str

    async def read(self, *, deadline_s: float) -> Kept:
        key = kept_key(self.policy)
        try:
            stored = await self.store.get(key, max_bytes=MAX_KEPT_BYTES, deadline_s=deadline_s)
        except ObjectNotFound:
            return NOTHING_KEPT
        try:
            kept = msgspec.json.decode(stored.body, type=Kept)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidKept(f"{self.store.where(key)} is malformed: {error}; remove it to keep nothing") from None
        if kept.format != FORMAT:
            raise InvalidKept(f"{self.store.where(key)} has format {kept.format}; this version reads {FORMAT}")
        return kept

    async def write(self, kept: Kept, *, deadline_s: float) -> None:
        await self.store.put(kept_key(self.policy), msgspec.json.encode(kept), deadline_s=deadline_s)
