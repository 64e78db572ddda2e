"""The checkpoints of one policy: files first, then an index of them, and the pointer to it last and by one writer only.

A crash at any moment leaves the older checkpoint in force, and whatever was half written is deleted with the next.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.trainer.checkpoints.index import (
    MAX_INDEX_BYTES,
    CheckpointFile,
    CheckpointIndex,
    CheckpointPointer,
    IndexReference,
    sha256_of,
)
from trimtab.trainer.checkpoints.parts import CheckpointParts, HashedParts
from trimtab.trainer.checkpoints.reader import CheckpointReader
from trimtab.trainer.checkpoints.seal import CheckpointSeal
from trimtab.trainer.checkpoints.storage import (
    CheckpointStorage,
    FileMissing,
    PointerMoved,
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


class CheckpointStore(CheckpointReader):
    """Every rank has one. Rank 0 claims it before any rank writes, and alone commits."""

    def __init__(
        self,
        storage: CheckpointStorage,
        seal: CheckpointSeal,
        *,
        keep: int,
        new_id: Callable[[], str] = lambda: uuid.uuid4().hex,
    ) -> None:
        super().__init__(storage, seal)
        self._seal = seal
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

    @property
    def _writer(self) -> _Claimed:
        if self._claimed is None:
            raise RuntimeError("claim the checkpoints before writing one")
        return self._claimed

    @property
    def epoch(self) -> int:
        return self._writer.epoch

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
