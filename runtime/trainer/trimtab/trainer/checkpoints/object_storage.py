"""Checkpoints in an object store."""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
from pathlib import Path

from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.conditional import compare_and_swap, put_if_absent
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.objects.errors import (
    ChecksumMismatch,
    ObjectChanged,
    ObjectNotFound,
    ObjectTooLarge,
    PreconditionFailed,
)
from trimtab.fabric.objects.upload import upload
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, MAX_POINTER_BYTES, CheckpointDamaged
from trimtab.trainer.checkpoints.storage import CHECKPOINTS, FileMissing, PointerMoved, SeenPointer, abandoned_folders

_POINTER = "latest.json"
_CALL_DEADLINE_S = 60.0
_TRANSFER_DEADLINE_S = 3600.0
_EPOCH = re.compile(rf"/{CHECKPOINTS}/\d{{12}}-(\d{{12}})/")


class ObjectStorage:
    """`prefix` is the folder of one policy in the store; `scratch` lies on a local disk."""

    def __init__(self, store: ObjectStore, prefix: str, *, scratch: Path) -> None:
        self._store = store
        self._prefix = prefix
        self._scratch = scratch

    @property
    def scratch(self) -> Path:
        return self._scratch

    def where(self, name: str) -> str:
        return self._store.where(self._key(name))

    @property
    def pointer(self) -> str:
        return self.where(_POINTER)

    async def put_file(self, name: str, source: Path) -> None:
        await upload(self._store, self._key(name), source, deadline_s=_TRANSFER_DEADLINE_S)

    async def put(self, name: str, body: bytes) -> None:
        await self._store.put(self._key(name), body, deadline_s=_CALL_DEADLINE_S)

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        try:
            return (await self._store.get(self._key(name), max_bytes=max_bytes, deadline_s=_CALL_DEADLINE_S)).body
        except ObjectNotFound:
            raise FileMissing(self.where(name)) from None
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise _damaged(error) from None

    async def beginning(self, name: str, *, count: int) -> bytes:
        key = self._key(name)

        def read() -> bytes:
            answer = self._store.s3.get_object(
                Bucket=self._store.bucket, Key=self._store.full_key(key), Range=f"bytes=0-{count - 1}"
            )
            with answer["Body"] as body:
                return body.read(count)

        try:
            return await self._store.call(read, doing=f"get {self.where(name)}", deadline_s=_CALL_DEADLINE_S)
        except ObjectNotFound:
            raise FileMissing(self.where(name)) from None

    async def fetch(self, name: str, target: Path, *, size: int) -> str:
        shape = DownloadShape(max_bytes=size)
        try:
            await download_to_file(self._store, self._key(name), target, deadline_s=_TRANSFER_DEADLINE_S, shape=shape)
        except ObjectNotFound:
            raise FileMissing(self.where(name)) from None
        except (ChecksumMismatch, ObjectTooLarge, ObjectChanged) as error:
            raise _damaged(error) from None
        # Its ranges arrive in any order, so it is read once more, from the page cache as a rule.
        return await asyncio.to_thread(_sha256_of_file, target)

    async def names(self) -> list[str]:
        whole = self._key(f"{CHECKPOINTS}/")
        return [info.key.removeprefix(f"{self._prefix}/") async for info in self._store.scan(whole)]

    async def delete(self, name: str) -> None:
        await self._store.delete(self._key(name), deadline_s=_CALL_DEADLINE_S)

    async def clear_unfinished(self, *, before_epoch: int) -> None:
        """Uploads in parts that were never completed are listed by no scan, and cost as much as objects."""
        for folder in await asyncio.to_thread(abandoned_folders, self._scratch, before_epoch=before_epoch):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        bucket, prefix = self._store.bucket, f"{self._store.full_key(self._prefix)}/"

        def abort() -> None:
            answer = self._store.s3.list_multipart_uploads(Bucket=bucket, Prefix=prefix)
            for begun in answer.get("Uploads", []):
                found = _EPOCH.search(begun["Key"])
                if found is not None and int(found[1]) < before_epoch:
                    self._store.s3.abort_multipart_upload(Bucket=bucket, Key=begun["Key"], UploadId=begun["UploadId"])

        await self._store.call(abort, doing=f"abort uploads beside {self.pointer}", deadline_s=_CALL_DEADLINE_S)

    async def read_pointer(self) -> SeenPointer | None:
        try:
            stored = await self._store.get(
                self._key(_POINTER), max_bytes=MAX_POINTER_BYTES, deadline_s=_CALL_DEADLINE_S
            )
        except ObjectNotFound:
            return None
        except (ChecksumMismatch, ObjectTooLarge) as error:
            raise _damaged(error) from None
        return SeenPointer(body=stored.body, tag=stored.info.etag)

    async def swap_pointer(self, body: bytes, *, seen: SeenPointer | None) -> None:
        key = self._key(_POINTER)
        try:
            if seen is None:
                await put_if_absent(self._store, key, body, deadline_s=_CALL_DEADLINE_S)
            else:
                await compare_and_swap(self._store, key, body, etag=seen.tag, deadline_s=_CALL_DEADLINE_S)
        except PreconditionFailed:
            raise PointerMoved(self.pointer) from None

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}"


def _sha256_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _damaged(error: Exception) -> CheckpointDamaged:
    return CheckpointDamaged(f"{error}; {HOW_TO_GO_ON}")
