"""Checkpoints in an object store."""

from __future__ import annotations

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.errors import ChecksumMismatch, ObjectNotFound, ObjectTooLarge, PreconditionFailed
from trimtab.fabric.objects.pointers import POINTER, announce_pointer
from trimtab.fabric.objects.ranges import read_range
from trimtab.fabric.objects.upload import PartSource, upload_parts
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, MAX_POINTER_BYTES, CheckpointDamaged
from trimtab.trainer.checkpoints.parts import AT_ONCE
from trimtab.trainer.checkpoints.storage import CHECKPOINTS, FileMissing, PointerMoved, SeenPointer, epoch_of

_CALL_DEADLINE_S = 60.0
_TRANSFER_DEADLINE_S = 3600.0


class ObjectStorage:
    """`prefix` is the folder of one policy in the store."""

    def __init__(self, store: ObjectStore, prefix: str) -> None:
        self._store = store
        self._prefix = prefix

    def where(self, name: str) -> str:
        return self._store.where(self._key(name))

    @property
    def pointer(self) -> str:
        return self.where(POINTER)

    async def write(self, name: str, source: PartSource) -> None:
        await upload_parts(self._store, self._key(name), source, parallel=AT_ONCE, deadline_s=_TRANSFER_DEADLINE_S)

    async def put(self, name: str, body: bytes) -> None:
        await self._store.put(self._key(name), body, deadline_s=_CALL_DEADLINE_S)

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        try:
            return (await self._store.get(self._key(name), max_bytes=max_bytes, deadline_s=_CALL_DEADLINE_S)).body
        except ObjectNotFound:
            raise FileMissing(self.where(name)) from None
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise _damaged(error) from None

    async def read(self, name: str, into: memoryview, *, start: int, size: int) -> int:
        try:
            found = await read_range(self._store, self._key(name), into, start=start, deadline_s=_CALL_DEADLINE_S)
        except ObjectNotFound:
            raise FileMissing(self.where(name)) from None
        if found.size != size:
            raise CheckpointDamaged(f"{self.where(name)} has {found.size} bytes, written were {size}; {HOW_TO_GO_ON}")
        return found.count

    async def names(self) -> list[str]:
        whole = self._key(f"{CHECKPOINTS}/")
        return [info.key.removeprefix(f"{self._prefix}/") async for info in self._store.scan(whole)]

    async def delete(self, name: str) -> None:
        await self._store.delete(self._key(name), deadline_s=_CALL_DEADLINE_S)

    async def clear_unfinished(self, *, before_epoch: int) -> None:
        """Uploads in parts that were never completed are listed by no scan, and cost as much as objects."""
        bucket, prefix = self._store.bucket, f"{self._store.full_key(self._prefix)}/"

        def abort() -> None:
            answer = self._store.s3.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
            for begun in answer.get("Uploads", []):
                epoch = epoch_of(begun["Key"].removeprefix(prefix))
                if epoch is not None and epoch < before_epoch:
                    self._store.s3.abort_multipart_upload(Bucket=bucket, Key=begun["Key"], UploadId=begun["UploadId"])

        await self._store.call(abort, doing=f"abort uploads beside {self.pointer}", deadline_s=_CALL_DEADLINE_S)

    async def read_pointer(self) -> SeenPointer | None:
        try:
            stored = await self._store.get(self._key(POINTER), max_bytes=MAX_POINTER_BYTES, deadline_s=_CALL_DEADLINE_S)
        except ObjectNotFound:
            return None
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise _damaged(error) from None
        return SeenPointer(body=stored.body, tag=stored.info.etag)

    async def swap_pointer(self, body: bytes, *, seen: SeenPointer | None) -> None:
        """What it leads to is on the disk before it does, and it is there itself before anyone is told."""
        key = self._key(POINTER)
        await announce_pointer(self._store, key, body, deadline_s=_TRANSFER_DEADLINE_S)
        try:
            if seen is None:
                await put_if_absent(self._store, key, body, deadline_s=_CALL_DEADLINE_S)
            else:
                await compare_and_swap(self._store, key, body, etag=seen.tag, deadline_s=_CALL_DEADLINE_S)
        except PreconditionFailed:
            raise PointerMoved(self.pointer) from None
        await self._store.sync(deadline_s=_TRANSFER_DEADLINE_S)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _damaged(error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"{error}; {HOW_TO_GO_ON}")
