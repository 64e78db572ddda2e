"""Packs encoded blocks into chunks of a size that suits object stores, and uploads them while more are encoded."""

from __future__ import annotations

import asyncio
import hashlib
from types import TracebackType
from typing import Self

import msgspec

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import PreconditionFailed, StoreTimeout
from trimtab.fabric.objects.upload import upload
from trimtab.weights.store.in_flight import Publication
from trimtab.weights.store.keys import chunk_key
from trimtab.weights.store.manifest import Chunk, Piece

CHUNK_BYTES = 8 << 20


class ChunkWriter:
    """Takes a version's encoded blocks in order. At most `max_bytes_in_flight` of them are on the way, but always one
    chunk, besides the one that is being filled. Leaving it stops the uploads that have not ended.
    """

    def __init__(
        self,
        store: ObjectStore,
        policy: str,
        *,
        epoch: int,
        publication: Publication | None,
        deadline_s: float,
        parallel: int = 8,
        max_bytes_in_flight: int = 32 << 20,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        """`deadline_s` is for each chunk. Only a block that is larger makes a chunk larger than `chunk_bytes`. Without
        a publication nothing keeps another process from deleting old chunks: none that is there already is relied on.
        """
        self._store = store
        self._policy = policy
        self._epoch = epoch
        self._publication = publication
        self._deadline_s = deadline_s
        self._parallel = parallel
        self._max_bytes_in_flight = max_bytes_in_flight
        self._chunk_bytes = chunk_bytes
        self._filling: list[bytes] = []
        self._filled_bytes = 0
        # Until the end pieces name the upload that takes them along; uploads of equal content become one chunk.
        self._pieces: list[Piece] = []
        self._uploads: list[asyncio.Task[Chunk]] = []
        self._under_way: dict[asyncio.Task[Chunk], int] = {}

    async def add(self, block: int, mode: str, encoded: bytes, *, base: bytes | None, digest: bytes) -> None:
        """Waits while too much is on the way. Raises what an earlier upload has failed with."""
        if self._pieces and block <= self._pieces[-1].block:
            raise ValueError(f"block {block} comes after block {self._pieces[-1].block}; add them in order")
        if self._filling and self._filled_bytes + len(encoded) > self._chunk_bytes:
            await self._send()
        self._pieces.append(
            Piece(
                block=block,
                mode=mode,
                chunk=len(self._uploads),
                offset=self._filled_bytes,
                size=len(encoded),
                base=None if base is None else base.hex(),
                digest=digest.hex(),
            )
        )
        self._filling.append(encoded)
        self._filled_bytes += len(encoded)
        if self._filled_bytes >= self._chunk_bytes:
            await self._send()

    async def finish(self) -> tuple[tuple[Chunk, ...], tuple[Piece, ...]]:
        """When everything is in the store: what the manifest says of it."""
        if self._filling:
            await self._send()
        while self._under_way:
            await self._await_one()
        sent = [task.result() for task in self._uploads]
        chunks = tuple(dict.fromkeys(sent))
        index = {chunk: number for number, chunk in enumerate(chunks)}
        pieces = (msgspec.structs.replace(piece, chunk=index[sent[piece.chunk]]) for piece in self._pieces)
        return chunks, tuple(pieces)

    async def _send(self) -> None:
        size = self._filled_bytes
        while self._under_way and (
            len(self._under_way) >= self._parallel or sum(self._under_way.values()) + size > self._max_bytes_in_flight
        ):
            await self._await_one()
        body = self._filling[0] if len(self._filling) == 1 else b"".join(self._filling)
        self._filling, self._filled_bytes = [], 0
        task = asyncio.create_task(self._upload(body))
        self._uploads.append(task)
        self._under_way[task] = size

    async def _await_one(self) -> None:
        # Each upload ends by its own deadline.
        done, _ = await asyncio.wait(self._under_way, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            del self._under_way[task]
        for task in done:
            task.result()

    async def _upload(self, body: bytes) -> Chunk:
        sha256 = (await asyncio.to_thread(hashlib.sha256, body)).hexdigest()
        key = chunk_key(self._policy, epoch=self._epoch, sha256=sha256)
        try:
            async with asyncio.timeout(self._deadline_s):
                if self._publication is not None:
                    await self._publication.claim(key)
                await upload(self._store, key, body, if_absent=True, deadline_s=self._deadline_s)
        except PreconditionFailed:
            # Named by its content, it is the same. But if it is old, a collection may be about to delete it: then a few
            # bytes behind the last block make a new one of it.
            if self._publication is None:
                return await self._upload(body + self._store.new_write_id().encode())
        except TimeoutError:
            raise StoreTimeout(f"upload {self._store.where(key)}: not done within {self._deadline_s:.3g} s") from None
        return Chunk(sha256, len(body))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
