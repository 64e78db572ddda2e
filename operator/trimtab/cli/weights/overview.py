"""Everything the catalogue of a policy says, put together for `inspect`, with words for its entries and for the ways
through it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

import msgspec

from trimtab.cli.weights.access import LEASE_TTL_S, REQUEST_DEADLINE_S, OpenWeights, store_time
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.objects.upload import all_or_first_error
from trimtab.fabric.signing import Verifier
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.leases import live_leases
from trimtab.weights.store.manifest import InvalidManifest, WeightManifest
from trimtab.weights.store.manifests import ManifestReader
from trimtab.weights.store.position import Position
from trimtab.weights.store.route import NoRoute, cheapest_route

_PARALLEL = 8


class Kind(StrEnum):
    """An anchor needs nothing, a delta the version before, and a fold leads over versions that are there too."""

    ANCHOR = "anchor"
    DELTA = "delta"
    FOLD = "fold"


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An entry. What stands after `manifest` is known only from the manifest; `problem` is why it is not."""

    kind: Kind
    base: Position | None
    target: Position
    bytes: int
    manifest: str
    created_at: float | None = None
    chunks: int | None = None
    blocks: dict[str, int] | None = None
    problem: str | None = None


class LeaseRow(msgspec.Struct, frozen=True, kw_only=True):
    member: str
    held: Position | None
    age_s: float
    pins: int


class JoinerRoute(msgspec.Struct, frozen=True, kw_only=True):
    """What someone who has nothing fetches."""

    entries: list[str]
    words: str
    bytes: int


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    epoch: int
    newest: Position | None
    signatures_checked: bool
    entries: list[Row]
    leases: list[LeaseRow]
    bytes_by_kind: dict[Kind, int]
    average_delta_bytes: float | None
    anchor_bytes: int | None
    joiner: JoinerRoute | None


def kind_of(entry: Entry, latest: Latest) -> Kind:
    """Not by the distance of the numbers: trainers may publish every tenth step, and number versions by step."""
    base, target = entry.base, entry.target
    if base is None:
        return Kind.ANCHOR
    # What an earlier epoch published after the base may be of a dead lineage, so only this epoch's versions count.
    between = (other.target for other in latest.catalogue if base < other.target < target)
    return Kind.FOLD if any(position.epoch == target.epoch for position in between) else Kind.DELTA


def route_text(entries: Sequence[Entry], latest: Latest) -> str:
    """Such as: the anchor of version 3 of epoch 1, 2 deltas, 1 fold."""
    counts = Counter(kind_of(entry, latest) for entry in entries)
    anchors = [str(entry) for entry in entries if entry.base is None]
    others = [
        f"{counts[kind]} {kind}{'s' if counts[kind] > 1 else ''}" for kind in (Kind.DELTA, Kind.FOLD) if counts[kind]
    ]
    return ", ".join(anchors + others)


async def overview(weights: OpenWeights) -> Overview:
    latest, verifier = await weights.latest(), weights.verifier()
    now = await store_time(weights.store, deadline_s=REQUEST_DEADLINE_S)
    leases = await live_leases(weights.store, weights.policy, now=now, ttl_s=LEASE_TTL_S, deadline_s=REQUEST_DEADLINE_S)
    rows = await _rows(weights, latest, verifier)
    sizes: Counter[Kind] = Counter()
    for row in rows:
        sizes[row.kind] += row.bytes
    deltas = [row.bytes for row in rows if row.kind is Kind.DELTA]
    anchors = [row.bytes for row in rows if row.kind is Kind.ANCHOR]
    return Overview(
        policy=weights.policy,
        epoch=latest.epoch,
        newest=latest.newest,
        signatures_checked=verifier is not None,
        entries=rows,
        leases=[
            LeaseRow(member=aged.lease.member, held=aged.lease.held, age_s=aged.age_s, pins=len(aged.lease.pins))
            for aged in leases
        ],
        bytes_by_kind=dict(sizes),
        average_delta_bytes=sum(deltas) / len(deltas) if deltas else None,
        anchor_bytes=anchors[-1] if anchors else None,
        joiner=_joiner(weights.policy, latest),
    )


async def _rows(weights: OpenWeights, latest: Latest, verifier: Verifier | None) -> list[Row]:
    """By target, anchors first."""
    reader = ManifestReader(weights.store, weights.policy, verifier, cached=0) if verifier else None
    turn = asyncio.Semaphore(_PARALLEL)

    async def row(entry: Entry) -> Row:
        manifest: WeightManifest | None = None
        problem: str | None = None
        if reader is not None:
            try:
                async with turn:
                    manifest = await reader.read(entry, deadline_s=REQUEST_DEADLINE_S)
            except (InvalidManifest, ObjectNotFound) as error:
                problem = str(error)
        return Row(
            kind=kind_of(entry, latest),
            base=entry.base,
            target=entry.target,
            bytes=entry.bytes,
            manifest=entry.manifest,
            created_at=manifest.created_at if manifest else None,
            chunks=len(manifest.chunks) if manifest else None,
            blocks=dict(Counter(piece.mode for piece in manifest.pieces)) if manifest else None,
            problem=problem,
        )

    ordered = sorted(latest.catalogue, key=lambda entry: (entry.target, entry.base is not None, entry.base))
    return await all_or_first_error(row(entry) for entry in ordered)


def _joiner(policy: str, latest: Latest) -> JoinerRoute | None:
    try:
        route = cheapest_route(latest, None)
    except NoRoute:
        return None
    return JoinerRoute(
        entries=[entry.key(policy) for entry in route.entries],
        words=route_text(route.entries, latest),
        bytes=route.bytes,
    )
