"""Checks everything that the catalogue leads to: manifests and their signatures, chunks and their content, and, when
asked for, every state that they give, block by block from the anchors on.

Only reads, so that it can run beside a trainer with nothing but the right to look. What the trainer's collection takes
away in the meantime is recognised by a second look at the catalogue.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import ChecksumMismatch, ObjectNotFound, ObjectTooLarge
from trimtab.fabric.objects.upload import Progress, all_or_first_error
from trimtab.fabric.signing import SIGNATURE_BYTES, Verifier, WrongSignature
from trimtab.weights.assembly import ChunkFiles, Stage, WrongWeights, rebuilt
from trimtab.weights.codec.change import Bytes
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import Block, StateLayout
from trimtab.weights.store.chunk_fetch import DamagedChunk, MissingChunk, fetch_chunks
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.latest import Latest
from trimtab.weights.store.manifest import (
    MAGIC,
    MAX_MANIFEST_BYTES,
    Chunk,
    InvalidManifest,
    Piece,
    WeightManifest,
    open_sealed,
)
from trimtab.weights.store.position import Position


class FaultKind(StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"
    SIGNATURE = "wrong signature"
    STATE = "wrong state"


@dataclass(frozen=True)
class Fault:
    """What is wrong with an entry of the catalogue."""

    kind: FaultKind
    entry: Entry
    reason: str


@dataclass(frozen=True)
class CheckedManifests:
    """Those that are genuine, by entry, and what is wrong with the others."""

    genuine: Mapping[Entry, WeightManifest]
    faults: tuple[Fault, ...]

    def chunks(self) -> dict[str, tuple[Chunk, list[Entry]]]:
        """By key, with the entries that need it."""
        found: dict[str, tuple[Chunk, list[Entry]]] = {}
        for entry, manifest in self.genuine.items():
            for key, chunk in manifest.chunk_keys().items():
                found.setdefault(key, (chunk, []))[1].append(entry)
        return found


@dataclass(frozen=True)
class CheckedChunks:
    """`kept` are files by SHA-256, when they were to be kept."""

    kept: Mapping[str, Path]
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class CheckedStates:
    """`unconfirmed` are entries of which blocks could not be decoded for lack of the weights that they build on."""

    confirmed: int
    unconfirmed: tuple[Entry, ...]
    faults: tuple[Fault, ...]


async def check_manifests(
    store: ObjectStore, policy: str, verifier: Verifier, latest: Latest, *, parallel: int, deadline_s: float
) -> CheckedManifests:
    turn = asyncio.Semaphore(parallel)

    async def check(entry: Entry) -> WeightManifest | Fault:
        key = entry.key(policy)
        try:
            async with turn:
                body = (await store.get(key, max_bytes=MAX_MANIFEST_BYTES, deadline_s=deadline_s)).body
            return open_sealed(body, verifier=verifier, policy=policy, entry=entry)
        except ObjectNotFound as error:
            return Fault(FaultKind.MISSING, entry, str(error))
        except (ChecksumMismatch, ObjectTooLarge) as error:
            return Fault(FaultKind.DAMAGED, entry, str(error))
        except InvalidManifest as error:
            return Fault(_kind_of_refusal(body, entry, verifier), entry, f"{store.where(key)}: {error}")

    checked = await all_or_first_error(check(entry) for entry in latest.catalogue)
    outcomes = list(zip(latest.catalogue, checked, strict=True))
    return CheckedManifests(
        genuine={entry: outcome for entry, outcome in outcomes if isinstance(outcome, WeightManifest)},
        faults=tuple(outcome for _, outcome in outcomes if isinstance(outcome, Fault)),
    )


def _kind_of_refusal(body: bytes, entry: Entry, verifier: Verifier) -> FaultKind:
    end = len(MAGIC) + SIGNATURE_BYTES
    if hashlib.sha256(body).hexdigest() != entry.manifest or len(body) < end:
        return FaultKind.DAMAGED
    try:
        verifier.verify(body[len(MAGIC) : end], MAGIC + body[end:])
    except WrongSignature:
        return FaultKind.SIGNATURE
    return FaultKind.STATE


async def check_chunks(
    store: ObjectStore, checked: CheckedManifests, *, spool: Path, keep: bool, parallel: int, deadline_s: float,
    progress: Progress | None = None,
) -> CheckedChunks:  # fmt: skip
    """Fetches every chunk once. Unless they are kept, no more than `parallel` of them lie in the spool at a time."""
    wanted = checked.chunks()
    total = sum(chunk.size for chunk, _ in wanted.values())
    turn = asyncio.Semaphore(parallel)
    faults: list[Fault] = []
    kept: dict[str, Path] = {}
    done = 0

    async def check(key: str, chunk: Chunk, entries: Sequence[Entry], folder: Path) -> None:
        nonlocal done
        async with turn:
            try:
                files = await fetch_chunks(
                    store, {key: chunk}, spool=folder, rate=None, parallel=1, deadline_s=deadline_s
                )
            except MissingChunk as error:
                faults.extend(Fault(FaultKind.MISSING, entry, str(error)) for entry in entries)
            except DamagedChunk as error:
                faults.extend(Fault(FaultKind.DAMAGED, entry, str(error)) for entry in entries)
            else:
                path = files[chunk.sha256]
                if keep:
                    kept[chunk.sha256] = path
                else:
                    await asyncio.to_thread(path.unlink)
        done += chunk.size
        if progress is not None:
            progress(done, total)

    # A folder for each: chunks of two epochs may have the same content, and both are to be fetched.
    await all_or_first_error(
        check(key, chunk, entries, spool / str(number)) for number, (key, (chunk, entries)) in enumerate(wanted.items())
    )
    return CheckedChunks(kept, tuple(faults))


def still_wanted(faults: Sequence[Fault], latest: Latest) -> tuple[Fault, ...]:
    """Without those of entries that have left the catalogue since it was read: they were collected, which is no fault.
    Sorted by version.
    """
    present = set(latest.catalogue)
    return tuple(sorted((fault for fault in faults if fault.entry in present), key=lambda fault: fault.entry.target))


def check_states(
    checked: CheckedManifests, kept: Mapping[str, Path], *, threads: int, progress: Progress | None = None
) -> CheckedStates:
    """Decodes every block of every version. In memory is, for each thread, one block in as many versions as deltas that
    still follow begin at: of a chain one, and one more for each fold that leads over it.
    """
    graph = _Graph.of(checked)
    chunks = ChunkFiles(kept)
    faults: list[Fault] = list(graph.faults)
    unconfirmed = set(graph.unconfirmed)
    confirmed = done = 0
    jobs = [(graph.steps[digest], block) for digest, layout in graph.layouts.items() for block in layout.blocks]
    with ThreadPoolExecutor(threads, thread_name_prefix="verify") as pool:
        for found in pool.map(lambda job: _check_block(job[0], job[1], chunks, kept), jobs):
            faults.extend(found.faults)
            unconfirmed.update(found.unconfirmed)
            confirmed += found.confirmed
            done += 1
            if progress is not None:
                progress(done, len(jobs))
    ordered = sorted(unconfirmed, key=lambda entry: (entry.target, entry.base or entry.target))
    return CheckedStates(confirmed, tuple(ordered), tuple(faults))


@dataclass(frozen=True)
class _Step:
    """An entry with its pieces by block."""

    entry: Entry
    manifest: WeightManifest
    pieces: Mapping[int, Piece]


@dataclass(frozen=True)
class _Graph:
    """What the manifests say of one another, before anything is decoded: the steps of each layout, bases first."""

    layouts: Mapping[str, StateLayout]
    steps: Mapping[str, Sequence[_Step]]
    faults: tuple[Fault, ...]
    unconfirmed: tuple[Entry, ...]

    @classmethod
    def of(cls, checked: CheckedManifests) -> _Graph:
        layouts: dict[str, StateLayout] = {}
        for manifest in checked.genuine.values():
            if manifest.header is not None:
                layouts[manifest.layout] = StateLayout.parse(manifest.header)
        states: dict[Position, list[str]] = {}
        steps: dict[str, list[_Step]] = {digest: [] for digest in layouts}
        faults: list[Fault] = []
        unconfirmed: list[Entry] = []
        # Every entry leads to a later position, so in this order its base was seen before.
        for entry, manifest in sorted(checked.genuine.items(), key=lambda item: item[0].target):
            layout = layouts.get(manifest.layout)
            base = states.get(entry.base) if entry.base is not None else []
            if layout is None or base is None:
                unconfirmed.append(entry)
                continue
            objection, after = _followed(manifest, layout, base)
            if objection is not None:
                faults.append(Fault(FaultKind.STATE, entry, objection))
                continue
            states[entry.target] = after
            pieces = {piece.block: piece for piece in manifest.pieces}
            steps[manifest.layout].append(_Step(entry, manifest, pieces))
        return cls(layouts, steps, tuple(faults), tuple(unconfirmed))


def _followed(manifest: WeightManifest, layout: StateLayout, base: Sequence[str]) -> tuple[str | None, list[str]]:
    """What a manifest claims must be at odds neither with its base nor with itself; and the digests it gives."""
    count = len(layout.blocks)
    after = list(base) if manifest.base is not None else [""] * count
    if len(after) != count:
        return f"{manifest.target} has other tensors than {manifest.base}", after
    if manifest.base is not None and root_digest(layout, [bytes.fromhex(d) for d in base]) != manifest.base_root:
        return f"{manifest.target} builds on another state than {manifest.base} is", after
    for piece in manifest.pieces:
        if piece.block >= count:
            return f"{manifest.target} has a block {piece.block}, its layout {count}", after
        if piece.base is not None and piece.base != after[piece.block]:
            return f"block {piece.block} of {manifest.target} builds on another content than {manifest.base} has", after
        after[piece.block] = piece.digest
    if root_digest(layout, [bytes.fromhex(digest) for digest in after]) != manifest.root:
        return f"the blocks of {manifest.target} do not give its root", after
    return None, after


@dataclass(frozen=True)
class _BlockOutcome:
    confirmed: int
    unconfirmed: tuple[Entry, ...]
    faults: tuple[Fault, ...]


def _check_block(steps: Sequence[_Step], block: Block, chunks: ChunkFiles, kept: Mapping[str, Path]) -> _BlockOutcome:
    last_use = {step.entry.base: number for number, step in enumerate(steps)}
    contents: dict[Position, Bytes] = {}
    faults: list[Fault] = []
    unconfirmed: list[Entry] = []
    confirmed = 0
    for number, step in enumerate(steps):
        entry, piece = step.entry, step.pieces.get(block.index)
        base = contents.get(entry.base) if entry.base is not None else None
        if entry.base is not None and base is None:
            unconfirmed.append(entry)
        elif piece is None:
            assert base is not None, "an anchor has every block"
            contents.setdefault(entry.target, base)
        elif step.manifest.chunks[piece.chunk].sha256 in kept:
            try:
                content, _ = rebuilt(block, base, [Stage(step.manifest, piece)], chunks)
            except WrongWeights as error:
                faults.append(Fault(FaultKind.STATE, entry, str(error)))
            else:
                contents.setdefault(entry.target, content)
                confirmed += 1
        for position in [position for position in contents if last_use.get(position, -1) <= number]:
            del contents[position]
    return _BlockOutcome(confirmed, tuple(unconfirmed), tuple(faults))
