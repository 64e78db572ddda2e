"""Puts new weights together from fetched chunks: block by block, through every delta of a route, verified at each.

Nothing is taken on trust: the base of the first delta must be what is held, and what a delta gives must have the digest
that the next one begins with.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trimtab.weights.apply.copy_files import Held
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.transaction import PreparedUpdate
from trimtab.weights.codec.blocks import Mode, decode_block
from trimtab.weights.codec.change import Bytes, Sparse, elements, find_change
from trimtab.weights.codec.streams import DamagedPayload
from trimtab.weights.digests import block_digest, root_digest
from trimtab.weights.layout import Block, StateLayout
from trimtab.weights.store.manifest import Chunk, Piece, WeightManifest


class WrongWeights(RuntimeError):
    """Chunks that do not lead from what is held to what was promised."""


@dataclass(frozen=True)
class Stage:
    """One encoded block on the way of its block to the new version."""

    manifest: WeightManifest
    piece: Piece

    @property
    def chunk(self) -> Chunk:
        return self.manifest.chunks[self.piece.chunk]


@dataclass(frozen=True)
class Journey:
    """A route for the blocks of one layout: where it leads, and the stages of each block that has to be touched."""

    layout: StateLayout
    target: Held
    stages: Mapping[int, Sequence[Stage]]

    def chunks(self) -> dict[str, Chunk]:
        """By key: what has to be fetched."""
        needed = [stage for stages in self.stages.values() for stage in stages]
        by_manifest = {id(stage.manifest): stage.manifest for stage in needed}
        wanted = {(stage.manifest.target, stage.chunk.sha256) for stage in needed}
        return {
            key: chunk
            for manifest in by_manifest.values()
            for key, chunk in manifest.chunk_keys().items()
            if (manifest.target, chunk.sha256) in wanted
        }


def plan_journey(manifests: Sequence[WeightManifest], *, layout: StateLayout | None, held: Held | None) -> Journey:
    """Raises WrongWeights when the manifests do not follow from each other, or not from what is held."""
    first, last = manifests[0], manifests[-1]
    if first.header is not None:
        layout = StateLayout.parse(first.header)
    if layout is None:
        raise WrongWeights(f"{first.target} is a delta, and nothing is held")
    digests: list[str | None] = [None] * len(layout.blocks)
    root: str | None = None
    if held is not None:
        digests, root = [digest.hex() for digest in held.digests], held.root
    start = list(digests)
    stages: dict[int, list[Stage]] = {}
    for manifest in manifests:
        if manifest.layout != layout.digest:
            raise WrongWeights(f"{manifest.target} has other tensors than the weights it builds on")
        if manifest.base_root is not None and manifest.base_root != root:
            raise WrongWeights(f"{manifest.target} builds on other weights than {manifest.base} that is held")
        for piece in manifest.pieces:
            if piece.block >= len(digests):
                raise WrongWeights(f"{manifest.target} has a block {piece.block}, its layout {len(digests)}")
            if piece.base is not None and piece.base != digests[piece.block]:
                raise WrongWeights(f"block {piece.block} of {manifest.target} builds on another content than is held")
            before = [] if piece.base is None else stages.get(piece.block, [])
            stages[piece.block] = [*before, Stage(manifest, piece)]
            digests[piece.block] = piece.digest
        root = manifest.root
    known = [bytes.fromhex(digest) for digest in digests if digest is not None]
    if len(known) != len(digests) or root_digest(layout, known) != last.root:
        raise WrongWeights(f"the blocks of {last.target} do not give its root")
    target = Held(epoch=last.target.epoch, version=last.target.version, root=last.root, digests=tuple(known))
    touched = {block: path for block, path in stages.items() if digests[block] != start[block]}
    return Journey(layout, target, touched)


class ChunkFiles:
    """Fetched chunks by SHA-256. There can be thousands: none is held open."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def payload(self, stage: Stage) -> bytes:
        with self._files[stage.chunk.sha256].open("rb", buffering=0) as file:
            file.seek(stage.piece.offset)
            return file.read(stage.piece.size)


def _fresh(size: int) -> Bytes:
    return np.empty(size, dtype=np.uint8)


class _Buffers(threading.local):
    """Two of each thread's, in turn: a block is made from the one before it. Memory that is new for every block costs
    more than the copying.
    """

    def __init__(self) -> None:
        self._here, self._other = _fresh(0), _fresh(0)

    def __call__(self, size: int) -> Bytes:
        self._here, self._other = self._other, self._here
        if self._here.size < size:
            self._here = _fresh(size)
        return self._here[:size]


def rebuilt(
    block: Block, base: Bytes | None, stages: Sequence[Stage], chunks: ChunkFiles, *,
    room: Callable[[int], Bytes] = _fresh,
) -> tuple[Bytes, Sparse | None]:  # fmt: skip
    """The block's new content, which lies in the `room` asked for last; and the change itself when a single sparse
    delta led there.
    """
    content, change = base, None
    for stage in stages:
        fresh = room(block.size)
        try:
            mode = Mode(stage.piece.mode)
            positions = decode_block(mode, content, chunks.payload(stage), block.element, fresh)
        except (DamagedPayload, ValueError) as error:
            raise WrongWeights(f"block {block.index} of {stage.manifest.target} does not decode: {error}") from None
        if block_digest(fresh).hex() != stage.piece.digest:
            raise WrongWeights(
                f"block {block.index} of {stage.manifest.target} decodes to something else than promised"
            )
        if positions is not None:
            change = Sparse(positions, elements(fresh, block.element.width)[positions])
        content = fresh
    assert content is not None, "a block without stages has a base"
    return content, change if len(stages) == 1 else None


def prepare(copy: HostCopy, journey: Journey, chunks: ChunkFiles, executor: Executor) -> PreparedUpdate:
    """Everything that can be done while engines serve: decode, verify, write the journal."""
    buffers = _Buffers()
    with copy.begin(journey.target) as transaction:

        def put(index: int) -> None:
            block, held = journey.layout.blocks[index], copy.block(index)
            content, change = rebuilt(block, held, journey.stages[index], chunks, room=buffers)
            found = change if change is not None else find_change(held, content, width=block.element.width)
            if isinstance(found, Sparse):
                transaction.put_sparse(index, found.positions, found.values)
            else:
                transaction.put_whole(index, content)

        _all(executor, put, journey.stages)
        return transaction.prepare()


def build(folder: Path, spool: Path, journey: Journey, chunks: ChunkFiles, executor: Executor) -> HostCopy:
    """The first copy, from an anchor."""
    buffers = _Buffers()
    with HostCopy.build(folder, spool, journey.layout) as builder:

        def put(index: int) -> None:
            content, _ = rebuilt(journey.layout.blocks[index], None, journey.stages[index], chunks, room=buffers)
            builder.put(index, content)

        _all(executor, put, journey.stages)
        return builder.finish(journey.target)


def _all(executor: Executor, work: Callable[[int], None], blocks: Iterable[int]) -> None:
    for _ in executor.map(work, sorted(blocks)):
        pass
