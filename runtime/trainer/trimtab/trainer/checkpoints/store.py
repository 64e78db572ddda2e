"""The checkpoints of one policy: files first, then an index of them, and the pointer to it last and by one writer only.

A crash at any moment leaves the older checkpoint in force, and whatever was half written is deleted with the next.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.objects.upload import all_or_first_error
from trimtab.trainer.checkpoints.index import (
    HOW_TO_GO_ON,
    MAX_INDEX_BYTES,
    CheckpointDamaged,
    CheckpointFile,
    CheckpointIndex,
    CheckpointPointer,
    IndexReference,
    check_digest,
    sha256_of,
)
from trimtab.trainer.checkpoints.parts import AT_ONCE, CheckpointParts, HashedParts
from trimtab.trainer.checkpoints.seal import CheckpointRefused, CheckpointSeal
from trimtab.trainer.checkpoints.storage import (
    CheckpointStorage,
    FileMissing,
    PointerMoved,
    SeenPointer,
    folder_of,
    obsolete,
)
from trimtab.weights.store.latest import SupersededTrainer

_log = structlog.get_logger(__name__)
_SWAP_ATTEMPTS = 10
_SWAP_BACKOFF = FullJitter(base_s=0.05, cap_s=1.0)


class _Claimed(msgspec.Struct, frozen=True):
    epoch: Annotated[int, Meta(ge=1)]
    rank: Annotated[int, Meta(ge=0)]


class CheckpointStore:
    """Every rank has one. Rank 0 claims it before any rank writes, and alone commits."""

    def __init__(
        self,
        storage: CheckpointStorage,
        seal: CheckpointSeal,
        *,
        keep: int,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        self._storage = storage
        self._seal = seal
        self._seen_moves = 0
        self._keep = keep
        self._new_id = new_id
        self._claimed: _Claimed | None = None

    async def claim(self, epoch: int) -> None:
        """Become the writer: a trainer of a lower epoch that is not quite dead cannot move the pointer any more. Also
        where there is none yet, or that trainer could still make the first.
        """
        await self._move_pointer(lambda present: present, epoch=epoch)
        await self.follow(epoch, rank=0)

    async def follow(self, epoch: int, *, rank: int) -> None:
        """Write files for the trainer that has claimed this epoch."""
        self._claimed = _Claimed(epoch=epoch, rank=rank)
        try:
            await self._storage.clear_unfinished(before_epoch=epoch)
        except (ObjectStoreError, FileMissing, OSError) as error:
            _log.warning("unfinished_checkpoints_not_deleted", error=str(error))

    async def newest(self) -> CheckpointIndex | None:
        """Verified, but for its files."""
        sealed = await self.newest_sealed()
        return None if sealed is None else self.opened(sealed)

    async def newest_sealed(self) -> bytes | None:
        """The same as it was signed, for other ranks to open: each believes the signature and not its neighbour."""
        pointer, _ = await self._read_pointer()
        if pointer is None or not pointer.checkpoints:
            return None
        reference = pointer.checkpoints[0]
        where = self._storage.where(reference.name)
        try:
            body = await self._storage.get(reference.name, max_bytes=reference.size)
        except FileMissing:
            raise _missing(where) from None
        check_digest(sha256_of(body), expected=reference.sha256, where=where)
        index = self._seal.opened(body, CheckpointIndex, where=where)
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
        return self._seal.opened(sealed, CheckpointIndex, where=f"the index named by {self._storage.pointer}")

    async def put(self, source: CheckpointParts, *, step: int) -> CheckpointFile:
        """This rank's safetensors file of a step. It counts when an index with it is committed. After an error it can
        be repeated.
        """
        claimed = self._writer
        name = f"{folder_of(step=step, epoch=claimed.epoch)}/rank-{claimed.rank:05d}.safetensors"
        header = await asyncio.to_thread(lambda: source.header)
        hashed = HashedParts(source)
        try:
            await self._storage.write(name, hashed)
        except FileMissing:
            raise SupersededTrainer(
                f"epoch {self.epoch} of {self._storage.pointer} has a successor, which has tidied up"
            ) from None
        return CheckpointFile(
            rank=claimed.rank,
            name=name,
            size=source.size,
            part_bytes=source.part_bytes,
            digests=hashed.digests,
            header_size=len(header),
            header_sha256=sha256_of(header),
        )

    async def commit(self, index: CheckpointIndex) -> None:
        """Put it in force. All its files have been put."""
        if index.epoch != self._writer.epoch:
            raise ValueError(f"a trainer of epoch {self._writer.epoch} cannot commit for epoch {index.epoch}")
        body = self._seal.seal(index)
        if len(body) > MAX_INDEX_BYTES:
            raise ValueError(f"the index of step {index.step} has {len(body)} bytes, more than {MAX_INDEX_BYTES}")
        sha256 = sha256_of(body)
        name = f"{folder_of(step=index.step, epoch=index.epoch)}/index-{sha256}.json"
        await self._storage.put(name, body)
        reference = IndexReference(step=index.step, epoch=index.epoch, name=name, size=len(body), sha256=sha256)

        def with_it(present: tuple[IndexReference, ...]) -> tuple[IndexReference, ...]:
            others = tuple(other for other in present if other.name != name)
            return (reference, *others)[: self._keep]

        pointer = await self._move_pointer(with_it, epoch=index.epoch)
        await self._forget_obsolete(pointer)

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
            raise _missing(where) from None
        if count != len(into):
            raise CheckpointDamaged(f"{where} ends at byte {start + count} of {file.size}; {HOW_TO_GO_ON}")

    @property
    def _writer(self) -> _Claimed:
        if self._claimed is None:
            raise RuntimeError("claim the checkpoints before writing one")
        return self._claimed

    @property
    def epoch(self) -> int:
        return self._writer.epoch

    async def _read_pointer(self) -> tuple[CheckpointPointer | None, SeenPointer | None]:
        seen = await self._storage.read_pointer()
        if seen is None:
            if self._seen_moves:
                raise CheckpointRefused(f"{self._storage.pointer} is gone; {HOW_TO_GO_ON}")
            return None, None
        pointer = self._seal.opened(seen.body, CheckpointPointer, where=self._storage.pointer)
        if pointer.moves < self._seen_moves:
            raise CheckpointRefused(
                f"{self._storage.pointer} is refused: it is at move {pointer.moves} and was at {self._seen_moves}; an"
                f" older one was put back; {HOW_TO_GO_ON}"
            )
        self._seen_moves = pointer.moves
        return pointer, seen

    async def _move_pointer(
        self,
        change: Callable[[tuple[IndexReference, ...]], tuple[IndexReference, ...]],
        *,
        epoch: int,
    ) -> CheckpointPointer:
        for attempt in range(_SWAP_ATTEMPTS):
            present, seen = await self._read_pointer()
            if present is not None and present.epoch > epoch:
                raise SupersededTrainer(
                    f"epoch {epoch} of {self._storage.pointer} has a successor, {present.epoch}; if no other trainer"
                    " runs, checkpoints of an earlier job of this name lie there: move them away"
                )
            checkpoints = change(present.checkpoints if present is not None else ())
            moves = 1 if present is None else present.moves + 1
            wanted = CheckpointPointer(epoch=epoch, moves=moves, writer=self._new_id(), checkpoints=checkpoints)
            try:
                await self._storage.swap_pointer(self._seal.seal(wanted), seen=seen)
            except PointerMoved:
                await asyncio.sleep(_SWAP_BACKOFF.delay_s(attempt))
            else:
                self._seen_moves = moves
                return wanted
        raise SupersededTrainer(f"{self._storage.pointer} is being moved by another trainer")

    async def _forget_obsolete(self, pointer: CheckpointPointer) -> None:
        """Deleting is tidiness: what cannot be deleted now goes with the next checkpoint."""
        kept = [reference.name for reference in pointer.checkpoints]
        try:
            names = await self._storage.names()
            for name in obsolete(names, kept=kept, step=pointer.checkpoints[0].step, epoch=pointer.epoch):
                await self._storage.delete(name)
        except (ObjectStoreError, FileMissing, OSError) as error:
            _log.warning("old_checkpoints_not_deleted", error=str(error))


def _missing(where: str) -> CheckpointDamaged:
    return CheckpointDamaged(f"{where} is missing; {HOW_TO_GO_ON}")
