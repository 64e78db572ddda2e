"""Writes one version to the store, in the order that keeps it whole for every reader: chunks, manifest, pointer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreTimeout
from trimtab.fabric.signing import Signer
from trimtab.weights.encoding import EncodedBlock
from trimtab.weights.layout import StateLayout
from trimtab.weights.store.chunk_writer import CHUNK_BYTES, ChunkWriter
from trimtab.weights.store.entry import Entry
from trimtab.weights.store.in_flight import InFlight
from trimtab.weights.store.latest import LatestPointer
from trimtab.weights.store.manifest import FORMAT, WeightManifest
from trimtab.weights.store.manifests import write_manifest
from trimtab.weights.store.position import Position


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
        digests: dict[int, bytes] = {}
        try:
            async with asyncio.timeout(deadline_s):
                with self.in_flight.publication() as publication:
                    async with ChunkWriter(
                        self.store,
                        self.policy,
                        epoch=self.epoch,
                        publication=publication,
                        deadline_s=deadline_s,
                        chunk_bytes=self.chunk_bytes,
                    ) as chunks:
                        async for block in blocks:
                            digests[block.block] = block.digest
                            await chunks.add(
                                block.block,
                                block.encoded.mode,
                                block.encoded.payload,
                                base=block.base,
                                digest=block.digest,
                            )
                        stored, pieces = await chunks.finish()
                    manifest = WeightManifest(
                        format=FORMAT,
                        policy=self.policy,
                        target=target,
                        base=begin.position if begin else None,
                        base_root=begin.root if begin else None,
                        root=root(digests),
                        layout=layout.digest,
                        header=None if begin else layout.header,
                        chunks=stored,
                        pieces=pieces,
                        created_at=self.clock(),
                    )
                    entry = await write_manifest(
                        self.store, manifest, self.signer, publication=publication, deadline_s=deadline_s
                    )
                    await self.pointer.update(
                        lambda latest: latest.adding(entry), epoch=self.epoch, deadline_s=deadline_s
                    )
        except TimeoutError:
            raise StoreTimeout(f"{target} of {self.policy}: not written within {deadline_s:.3g} s") from None
        return entry
