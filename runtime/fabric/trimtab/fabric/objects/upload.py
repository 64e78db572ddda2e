"""Writing large objects: in parts, several at a time, and nothing left behind when it fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from trimtab.fabric.objects.checksums import crc32_header, digest_of, digest_of_file
from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.conditional import own_write, put_if_absent
from trimtab.fabric.objects.errors import ObjectNotFound, ObjectStoreError, PreconditionFailed, StoreTimeout

Result = TypeVar("Result")
Progress = Callable[[int, int], None]

MIN_PART_BYTES = 5 * 1024 * 1024
MAX_PARTS = 10_000
_ABORT_DEADLINE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class UploadShape:
    """How a body is cut up. At most `max_bytes_in_flight` of it are in memory and on the way, but always one part."""

    part_bytes: int = 16 * 1024 * 1024
    max_bytes_in_flight: int = 64 * 1024 * 1024

    def part_bytes_for(self, size: int) -> int:
        """Grown for bodies that would need more parts than S3 allows."""
        return max(self.part_bytes, MIN_PART_BYTES, -(-size // MAX_PARTS))

    def parallel_for(self, size: int) -> int:
        return max(1, self.max_bytes_in_flight // self.part_bytes_for(size))


DEFAULT_SHAPE = UploadShape()


class PartSource(Protocol):
    """A body that is read part by part, by several threads at once; all parts but the last have `part_bytes`."""

    @property
    def size(self) -> int: ...

    @property
    def part_bytes(self) -> int: ...

    def part(self, number: int) -> bytearray:
        """Counted from 0. It is asked for again when sending it failed. boto3 sends a bytearray in one piece, and bytes
        in a thousand.
        """


async def upload(
    store: ObjectStore,
    key: str,
    source: bytes | Path,
    *,
    if_absent: bool = False,
    deadline_s: float,
    shape: UploadShape = DEFAULT_SHAPE,
    progress: Progress | None = None,
) -> ObjectInfo:
    """Writes `source`, in parts when it is larger than one. `progress(done, total)` is called in the event loop."""
    size = len(source) if isinstance(source, bytes) else (await asyncio.to_thread(source.stat)).st_size
    part_bytes = shape.part_bytes_for(size)
    if size <= part_bytes:
        body = source if isinstance(source, bytes) else await asyncio.to_thread(source.read_bytes)
        if if_absent:
            info = await put_if_absent(store, key, body, deadline_s=deadline_s)
        else:
            info = await store.put(key, body, deadline_s=deadline_s)
        if progress is not None:
            progress(size, size)
        return info
    try:
        async with asyncio.timeout(deadline_s):
            digest = await asyncio.to_thread(_digest_of, source)
            parts = _Parts(store, key, _Cut(source, size, part_bytes), digest=digest, deadline_s=deadline_s)
            return await parts.write(if_absent=if_absent, parallel=shape.parallel_for(size), progress=progress)
    except TimeoutError:
        raise StoreTimeout(f"upload {store.where(key)}: not done within {deadline_s:.3g} s") from None


async def upload_parts(
    store: ObjectStore, key: str, source: PartSource, *, parallel: int, deadline_s: float
) -> ObjectInfo:
    """Writes whatever was there before, `parallel` parts at a time. Each part is read once, so there is no digest of
    the whole: whoever reads it must have digests of his own.
    """
    if source.size <= source.part_bytes:
        return await store.put(key, bytes(await asyncio.to_thread(source.part, 0)), deadline_s=deadline_s)
    try:
        async with asyncio.timeout(deadline_s):
            parts = _Parts(store, key, source, digest=None, deadline_s=deadline_s)
            return await parts.write(if_absent=False, parallel=parallel, progress=None)
    except TimeoutError:
        raise StoreTimeout(f"upload {store.where(key)}: not done within {deadline_s:.3g} s") from None


def _digest_of(source: bytes | Path) -> str:
    return digest_of(source) if isinstance(source, bytes) else digest_of_file(source)


@dataclass(frozen=True)
class _Cut:
    source: bytes | Path
    size: int
    part_bytes: int

    def part(self, number: int) -> bytearray:
        offset = number * self.part_bytes
        count = min(self.part_bytes, self.size - offset)
        if isinstance(self.source, bytes):
            return bytearray(memoryview(self.source)[offset : offset + count])
        body = bytearray(count)
        with self.source.open("rb") as file:
            file.seek(offset)
            del body[file.readinto(body) :]
        return body


class _Parts:
    def __init__(
        self, store: ObjectStore, key: str, source: PartSource, *, digest: str | None, deadline_s: float
    ) -> None:
        self._store = store
        self._key = key
        self._target: dict[str, Any] = {"Bucket": store.bucket, "Key": store.full_key(key)}
        self._source = source
        self._digest = digest
        self._deadline_s = deadline_s

    async def write(self, *, if_absent: bool, parallel: int, progress: Progress | None) -> ObjectInfo:
        write_id = self._store.new_write_id()
        metadata = self._store.metadata(digest=self._digest, write_id=write_id)
        started = await self._call(lambda: self._store.s3.create_multipart_upload(**self._target, Metadata=metadata))
        upload_id = started["UploadId"]
        try:
            etags = await self._send_parts(upload_id, parallel=parallel, progress=progress)
            etag = await self._complete(upload_id, etags, write_id=write_id, if_absent=if_absent)
        except BaseException:
            await self._abort(upload_id)
            raise
        return ObjectInfo(key=self._key, size=self._source.size, etag=etag, digest=self._digest, write_id=write_id)

    async def _send_parts(self, upload_id: str, *, parallel: int, progress: Progress | None) -> list[str]:
        turn = asyncio.Semaphore(parallel)
        done = 0

        async def send(number: int) -> str:
            nonlocal done
            async with turn:
                count, etag = await self._call(lambda: self._send_part(upload_id, number))
            done += count
            if progress is not None:
                progress(done, self._source.size)
            return etag

        return await all_or_first_error(
            send(number) for number in range(-(-self._source.size // self._source.part_bytes))
        )

    def _send_part(self, upload_id: str, number: int) -> tuple[int, str]:
        body: Any = self._source.part(number)  # boto3's stubs do not know bytearrays
        answer = self._store.s3.upload_part(
            **self._target, UploadId=upload_id, PartNumber=number + 1, Body=body, ChecksumCRC32=crc32_header(body)
        )
        return len(body), answer["ETag"]

    async def _complete(self, upload_id: str, etags: list[str], *, write_id: str, if_absent: bool) -> str:
        parts: Any = {"Parts": [{"PartNumber": n, "ETag": etag} for n, etag in enumerate(etags, start=1)]}
        condition: Any = {"IfNoneMatch": "*"} if if_absent else {}
        try:
            answer = await self._call(
                lambda: self._store.s3.complete_multipart_upload(
                    **self._target, UploadId=upload_id, MultipartUpload=parts, **condition
                )
            )
        except (PreconditionFailed, ObjectNotFound):
            # When an answer was lost, the repeat finds the object in place, or the upload gone because it is complete.
            own = await own_write(self._store, self._key, write_id, deadline_s=self._deadline_s)
            if own is None:
                raise
            return own.etag
        return answer["ETag"]

    async def _abort(self, upload_id: str) -> None:
        # Shielded and with a deadline of its own: it also runs when the upload was cancelled or out of time.
        abort = self._store.call(
            lambda: self._store.s3.abort_multipart_upload(**self._target, UploadId=upload_id),
            doing=f"abort upload {self._store.where(self._key)}",
            deadline_s=_ABORT_DEADLINE_S,
        )
        with contextlib.suppress(ObjectStoreError):
            await asyncio.shield(abort)

    async def _call(self, action: Callable[[], Result]) -> Result:
        return await self._store.call(
            action, doing=f"upload {self._store.where(self._key)}", deadline_s=self._deadline_s
        )


async def all_or_first_error(jobs: Iterable[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Results in order. On an error the other jobs are cancelled and awaited, and the error itself is raised."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
