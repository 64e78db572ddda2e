"""Reading the checkpoints of one policy, by whoever knows the key that its trainers sign with: nothing is believed for
where it is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from trimtab.fabric.objects.upload import all_or_first_error
from trimtab.trainer.checkpoints.index import (
    HOW_TO_GO_ON,
    CheckpointDamaged,
    CheckpointFile,
    CheckpointIndex,
    CheckpointPointer,
    IndexReference,
    check_digest,
    sha256_of,
)
from trimtab.trainer.checkpoints.parts import AT_ONCE
from trimtab.trainer.checkpoints.seal import CheckpointRefused, SealReader
from trimtab.trainer.checkpoints.storage import CheckpointStorage, FileMissing, SeenPointer


class CheckpointReader:
    """It changes nothing, and remembers how often the pointer was moved: no older one is put back unseen."""

    def __init__(self, storage: CheckpointStorage, seal: SealReader) -> None:
        self._storage = storage
        self._reading = seal
        self._seen_moves = 0

    async def newest(self) -> CheckpointIndex | None:
        """Verified, but for its files."""
        sealed = await self.newest_sealed()
        return None if sealed is None else self.opened(sealed)

    async def newest_sealed(self) -> bytes | None:
        """The same as it was signed, for other ranks to open: each believes the signature and not its neighbour."""
        committed = await self.committed()
        return await self.sealed(committed[0]) if committed else None

    async def committed(self) -> tuple[IndexReference, ...]:
        """Those that the pointer names, the newest first."""
        pointer, _ = await self._read_pointer()
        return () if pointer is None else pointer.checkpoints

    async def sealed(self, reference: IndexReference) -> bytes:
        """Its index as it was signed."""
        where = self._storage.where(reference.name)
        try:
            body = await self._storage.get(reference.name, max_bytes=reference.size)
        except FileMissing:
            raise missing(where) from None
        check_digest(sha256_of(body), expected=reference.sha256, where=where)
        index = self._reading.opened(body, CheckpointIndex, where=where)
        if (index.step, index.epoch) != (reference.step, reference.epoch):
            raise CheckpointRefused(
                f"{where} is refused: it is of step {index.step} of epoch {index.epoch}, its pointer names step"
                f" {reference.step} of epoch {reference.epoch}; {HOW_TO_GO_ON}"
            )
        return body

    async def proof(self) -> bytes | None:
        """The pointer as it was signed, which shows others how far this policy is trained; None without checkpoints."""
        pointer, seen = await self._read_pointer()
        return None if pointer is None or seen is None or not pointer.checkpoints else seen.body

    def opened(self, sealed: bytes) -> CheckpointIndex:
        return self._reading.opened(sealed, CheckpointIndex, where=f"the index named by {self._storage.pointer}")

    async def headers(self, files: Sequence[CheckpointFile]) -> list[bytes]:
        """What the files begin with, from which one sees what is in them."""
        turn = asyncio.Semaphore(AT_ONCE)

        async def header(file: CheckpointFile) -> bytes:
            async with turn:
                body = bytearray(file.header_size)
                await self._read(file, memoryview(body), start=0)
            where = f"the header of {self._storage.where(file.name)}"
            check_digest(sha256_of(body), expected=file.header_sha256, where=where)
            return bytes(body)

        return await all_or_first_error(header(file) for file in files)

    async def read(
        self,
        wanted: Sequence[tuple[CheckpointFile, int]],
        take: Callable[[CheckpointFile, int, memoryview], None],
    ) -> None:
        """Parts of files by their numbers, several at a time and in any order. `take` gets what was verified, in
        threads, and must copy what it needs.
        """
        buffers: asyncio.Queue[bytearray] = asyncio.Queue()
        for _ in range(min(AT_ONCE, len(wanted))):
            buffers.put_nowait(bytearray(max(file.part_bytes for file, _ in wanted)))

        async def read(file: CheckpointFile, number: int) -> None:
            buffer = await buffers.get()
            body = memoryview(buffer)[: file.part_size(number)]
            await self._read(file, body, start=number * file.part_bytes)
            await asyncio.to_thread(verify_and_take, file, number, body)
            # Only now, not after an error: a thread that was given up may still write to it.
            buffers.put_nowait(buffer)

        def verify_and_take(file: CheckpointFile, number: int, body: memoryview) -> None:
            where = f"part {number} of {self._storage.where(file.name)}"
            check_digest(sha256_of(body), expected=file.digests[number], where=where)
            take(file, number, body)

        await all_or_first_error(read(file, number) for file, number in wanted)

    async def fetch(self, file: CheckpointFile, target: Path) -> None:
        """The whole file, verified, as one that no other process changes."""
        with target.open("wb") as made:
            made.truncate(file.size)

            def take(_: CheckpointFile, number: int, body: memoryview) -> None:
                with target.open("r+b") as part:
                    part.seek(number * file.part_bytes)
                    part.write(body)

            await self.read([(file, number) for number in range(len(file.digests))], take)

    async def _read(self, file: CheckpointFile, into: memoryview, *, start: int) -> None:
        where = self._storage.where(file.name)
        try:
            count = await self._storage.read(file.name, into, start=start, size=file.size)
        except FileMissing:
            raise missing(where) from None
        if count != len(into):
            raise CheckpointDamaged(f"{where} ends at byte {start + count} of {file.size}; {HOW_TO_GO_ON}")

    async def _read_pointer(self) -> tuple[CheckpointPointer | None, SeenPointer | None]:
        seen = await self._storage.read_pointer()
        if seen is None:
            if self._seen_moves:
                raise CheckpointRefused(f"{self._storage.pointer} is gone; {HOW_TO_GO_ON}")
            return None, None
        pointer = self._reading.opened(seen.body, CheckpointPointer, where=self._storage.pointer)
        if pointer.moves < self._seen_moves:
            raise CheckpointRefused(
                f"{self._storage.pointer} is refused: it is at move {pointer.moves} and was at {self._seen_moves}; an"
                f" older one was put back; {HOW_TO_GO_ON}"
            )
        self._seen_moves = pointer.moves
        return pointer, seen


def missing(where: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"{where} is missing; {HOW_TO_GO_ON}")
