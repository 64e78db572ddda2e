"""Writes one version to the store, in the order that keeps it whole for every reader: chunks, manifest, pointer."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.fabric.signing import Signer
from trimtab.weights.baseline import Baseline
from trimtab.weights.codec.blocks import Codec, Encoded, encode_change, encode_whole
from trimtab.weights.codec.change import Change
from trimtab.weights.layout import Block, StateLayout
from trimtab.weights.store.chunk_writer import CHUNK_BYTES, ChunkWriter
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight, Publication
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.manifest import FORMAT, WeightManifest
from trimtab.weights.store.manifests import write_manifest
from trimtab.weights.store.position import Position
from trimtab.weights.stored_blocks import StoredBlocks


@dataclass(frozen=True)
class EncodedBlock:
    """A block ready for the store, with the digests of its content before and after; no `base` for a whole one."""

    block: int
    encoded: Encoded
    base: bytes | None
    digest: bytes


def encoded_change(baseline: Baseline, block: Block, change: Change, codec: Codec) -> EncodedBlock:
    return EncodedBlock(
        block.index,
        encode_change(baseline.block(block), change, block.element, codec=codec),
        baseline.digests[block.index],
        baseline.digest_after(block, change),
    )


def encoded_whole(baseline: Baseline, block: Block) -> EncodedBlock:
    whole = encode_whole(baseline.block(block), block.element)
    return EncodedBlock(block.index, whole, None, baseline.digests[block.index])


async def in_order(
    jobs: Iterable[Callable[[], EncodedBlock]], executor: Executor, *, ahead: int
) -> AsyncIterator[EncodedBlock]:
    """Runs `ahead` jobs at once and yields their results in the order of the jobs."""
    loop = asyncio.get_running_loop()
    under_way: deque[asyncio.Future[EncodedBlock]] = deque()
    try:
        for job in jobs:
            under_way.append(loop.run_in_executor(executor, job))
            if len(under_way) >= ahead:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        # Threads cannot be stopped; the next change of the baseline must not find one of them reading it.
        if under_way:
            await asyncio.gather(*under_way, return_exceptions=True)


@dataclass(frozen=True)
class Begin:
    """What a delta builds on."""

    position: Position
    root: str


@dataclass(frozen=True, kw_only=True)
class VersionWriter:
    """Of one policy in one epoch."""

    store: ObjectStore
    pointer: LatestPointer
    in_flight: InFlight
    policy: str
    epoch: int
    signer: Signer
    clock: Callable[[], float]
    chunk_bytes: int = CHUNK_BYTES

    async def write(
        self,
        target: Position,
        blocks: AsyncIterable[EncodedBlock],
        *,
        begin: Begin | None,
        root: Callable[[dict[int, bytes]], str],
        layout: StateLayout,
        deadline_s: float,
    ) -> Entry:
        """A delta from `begin`, or an anchor. `root` is asked, with the digests of the blocks, when all are written.

        Raises SupersededTrainer when a newer epoch was claimed; after any other error it can be repeated.
        """
        with self.in_flight.publication() as publication:
            stored = await self.store_blocks(blocks, publication=publication, deadline_s=deadline_s)
            return await self.sign(
                target, stored, begin=begin, root=root(stored.digests()), layout=layout, publication=publication,
                deadline_s=deadline_s,
            )  # fmt: skip

    async def store_blocks(
        self, blocks: AsyncIterable[EncodedBlock], *, publication: Publication | None, deadline_s: float
    ) -> StoredBlocks:
        """The first half: chunks, which nothing leads to yet. Without a publication the process that collects garbage
        is another one, and does not know what this one counts on.
        """
        try:
            async with (
                asyncio.timeout(deadline_s),
                ChunkWriter(
                    self.store,
                    self.policy,
                    epoch=self.epoch,
                    publication=publication,
                    deadline_s=deadline_s,
                    chunk_bytes=self.chunk_bytes,
                ) as chunks,
            ):
                async for block in blocks:
                    await chunks.add(
                        block.block, block.encoded.mode, block.encoded.payload, base=block.base, digest=block.digest
                    )
                stored, pieces = await chunks.finish()
        except TimeoutError:
            raise StoreTimeout(f"chunks of {self.policy}: not written within {deadline_s:.3g} s") from None
        return StoredBlocks(chunks=stored, pieces=pieces)

    async def sign(
        self,
        target: Position,
        stored: StoredBlocks,
        *,
        begin: Begin | None,
        root: str,
        layout: StateLayout,
        publication: Publication,
        deadline_s: float,
    ) -> Entry:
        """The second half: manifest and pointer. Afterwards the version is public."""
        manifest = WeightManifest(
            format=FORMAT,
            policy=self.policy,
            target=target,
            base=begin.position if begin else None,
            base_root=begin.root if begin else None,
            root=root,
            layout=layout.digest,
            header=None if begin else layout.header,
            chunks=stored.chunks,
            pieces=stored.pieces,
            created_at=self.clock(),
        )
        try:
            async with asyncio.timeout(deadline_s):
                entry = await write_manifest(
                    self.store, manifest, self.signer, publication=publication, deadline_s=deadline_s
                )
                await self.pointer.update(lambda latest: latest.adding(entry), epoch=self.epoch, deadline_s=deadline_s)
        except TimeoutError:
            raise StoreTimeout(f"{target} of {self.policy}: not written within {deadline_s:.3g} s") from None
        return entry
