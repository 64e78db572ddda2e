"""The object store of a job: boto3 in a bounded pool of threads behind an async face, every call with a deadline.

boto3's own retries are off, because they know neither our deadline nor which writes may be repeated.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from botocore.config import Config
from botocore.handlers import add_expect_header

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.durable_files import sync_file_system
from trimtab.fabric.objects.aws import aws_client
from trimtab.fabric.objects.checksums import crc32_header, digest_of, verify
from trimtab.fabric.objects.credentials import StoreCredentials, read_credentials
from trimtab.fabric.objects.errors import (
    STORE_FAULTS,
    InvalidKey,
    ObjectTooLarge,
    StoreTimeout,
    StoreUnavailable,
    translated,
)
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.tls import ChangingFile, TlsUnusable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

Result = TypeVar("Result")

DIGEST_METADATA = "trimtab-xxh3"
WRITE_METADATA = "trimtab-write"
DEFAULT_DEADLINE_S = 60.0
MAX_ATTEMPTS = 6
RETRY_BACKOFF = FullJitter(base_s=0.1, cap_s=3.0)
MAX_KEY_BYTES = 1024


@dataclass(frozen=True)
class ObjectInfo:
    """`digest` is the XXH3 the writer left, None for objects written by something else. `modified_at` is by the store's
    clock, in whole seconds with most stores, and None where an answer does not tell it, as those to writes.
    """

    key: str
    size: int
    etag: str
    digest: str | None = None
    write_id: str | None = None
    modified_at: float | None = field(default=None, compare=False)


@dataclass(frozen=True)
class StoredObject:
    info: ObjectInfo
    body: bytes


def _new_id() -> str:
    return uuid.uuid4().hex


class ObjectStore:
    """`ObjectStore(settings)` dials nothing; close it, or use it as an async context manager."""

    def __init__(
        self,
        settings: ObjectStoreSettings,
        *,
        threads: int = 16,
        backoff: FullJitter = RETRY_BACKOFF,
        new_id: Callable[[], str] = _new_id,
    ) -> None:
        self._settings = settings
        self._backoff = backoff
        self.new_write_id = new_id
        self._threads = threads
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="objects")
        self._authority = None if settings.ca_file is None else ChangingFile(settings.ca_file)
        self._changes = settings.ca_file is not None or settings.credentials_file is not None
        self._exchange = threading.Lock()
        self._made_with: tuple[bytes | None, StoreCredentials] | None = None
        self._client: S3Client | None = None
        if settings.credentials_file is None:
            # At once, so that an address which is none is told at the start.
            self._client = self._new_client(read_credentials(settings))

    @property
    def s3(self) -> S3Client:
        """For one request, inside `call`. boto3 keeps whom it trusted and who it was once: when the file of either has
        another content, its client is replaced, and requests that are under way end on the old one's connections.
        Raises TlsUnusable or StoreUnavailable."""
        client = self._client
        if client is not None and not self._changes:
            return client
        authority = None if self._authority is None else self._authority.content()
        wanted = authority, read_credentials(self._settings)
        with self._exchange:
            if self._client is None or self._made_with != wanted:
                old, self._client = self._client, self._new_client(wanted[1])
                self._made_with = wanted
                if old is not None:
                    old.close()
            return self._client

    def _new_client(self, credentials: StoreCredentials) -> S3Client:
        client: S3Client = aws_client(
            "s3",
            self._settings,
            credentials,
            config=Config(
                max_pool_connections=self._threads,
                # We send a checksum with everything we write and check what we read ourselves.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        # boto3 asks before every body whether it may send it: a round trip, twice the time of a small write far away.
        client.meta.events.unregister("before-call.s3", add_expect_header)
        return client

    @property
    def bucket(self) -> str:
        return self._settings.bucket

    def __repr__(self) -> str:
        bucket, prefix, endpoint = self._settings.bucket, self._settings.prefix, self._settings.endpoint_url
        return f"ObjectStore(bucket={bucket!r}, prefix={prefix!r}, endpoint={endpoint!r})"

    def full_key(self, key: str) -> str:
        return full_key(self._settings.prefix, key)

    def where(self, key: str) -> str:
        return f"s3://{self._settings.bucket}/{self.full_key(key)}"

    async def get(self, key: str, *, max_bytes: int, deadline_s: float = DEFAULT_DEADLINE_S) -> StoredObject:
        """The whole object, verified. One that is larger than `max_bytes` is refused before it is read."""
        target = self.full_key(key)

        def read() -> StoredObject:
            answer = self.s3.get_object(Bucket=self.bucket, Key=target)
            info = self.info_from(key, answer)
            with answer["Body"] as body:
                if info.size > max_bytes:
                    message = f"{self.where(key)} has {info.size} bytes, more than the {max_bytes} asked for"
                    raise ObjectTooLarge(message, size=info.size, limit=max_bytes)
                content = body.read()
            if len(content) != info.size:
                raise StoreUnavailable(f"{self.where(key)} ended after {len(content)} of {info.size} bytes")
            verify(digest_of(content), expected=info.digest, where=self.where(key))
            return StoredObject(info=info, body=content)

        return await self.call(read, doing=f"get {self.where(key)}", deadline_s=deadline_s)

    async def head(self, key: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> ObjectInfo:
        target = self.full_key(key)

        def look() -> ObjectInfo:
            return self.info_from(key, self.s3.head_object(Bucket=self.bucket, Key=target))

        return await self.call(look, doing=f"head {self.where(key)}", deadline_s=deadline_s)

    async def put(self, key: str, body: bytes, *, deadline_s: float = DEFAULT_DEADLINE_S) -> ObjectInfo:
        """Writes whatever was there before. For a body of many megabytes use upload.py."""
        digest, write_id = digest_of(body), self.new_write_id()
        return await self.call(
            lambda: self.put_once(key, body, digest=digest, write_id=write_id),
            doing=f"put {self.where(key)}",
            deadline_s=deadline_s,
        )

    async def delete(self, key: str, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """Deleting what does not exist is no error."""
        target = self.full_key(key)
        await self.call(
            lambda: self.s3.delete_object(Bucket=self.bucket, Key=target),
            doing=f"delete {self.where(key)}",
            deadline_s=deadline_s,
        )

    @property
    def syncs_later(self) -> bool:
        """Whether what is acknowledged may be lost with the power, unless `sync` was called."""
        return self._settings.unsynced_folder is not None

    async def sync(self, *, deadline_s: float = DEFAULT_DEADLINE_S) -> None:
        """What was put so far outlives a loss of power: a store elsewhere sees to that before it answers."""
        folder = self._settings.unsynced_folder
        if folder is not None:
            await self.call(lambda: sync_file_system(folder), doing=f"sync {folder}", deadline_s=deadline_s)

    async def scan(
        self, prefix: str = "", *, page: int = 1000, deadline_s: float = DEFAULT_DEADLINE_S
    ) -> AsyncIterator[ObjectInfo]:
        """Objects whose key begins with `prefix`, in the store's order; the deadline is for each page."""
        stem = self._settings.prefix.strip("/")
        whole = f"{stem}/{prefix}" if stem else prefix
        token: str | None = None
        while True:
            more: dict[str, Any] = {"ContinuationToken": token} if token else {}
            answer = await self.call(
                lambda more=more: self.s3.list_objects_v2(  # type: ignore[misc]
                    Bucket=self.bucket, Prefix=whole, MaxKeys=page, **more
                ),
                doing=f"list s3://{self.bucket}/{whole}",
                deadline_s=deadline_s,
            )
            for item in answer.get("Contents", []):
                relative = relative_key(self._settings.prefix, item["Key"])
                modified_at = item["LastModified"].timestamp()
                yield ObjectInfo(key=relative, size=item["Size"], etag=item["ETag"], modified_at=modified_at)
            token = answer.get("NextContinuationToken")
            if not token:
                return

    def put_once(self, key: str, body: bytes, *, digest: str, write_id: str, **condition: Any) -> ObjectInfo:
        """One attempt, in the calling thread."""
        answer = self.s3.put_object(
            Bucket=self.bucket,
            Key=self.full_key(key),
            Body=body,
            ChecksumCRC32=crc32_header(body),
            Metadata=self.metadata(digest=digest, write_id=write_id),
            **condition,
        )
        return ObjectInfo(key=key, size=len(body), etag=answer["ETag"], digest=digest, write_id=write_id)

    @staticmethod
    def metadata(*, digest: str | None, write_id: str) -> dict[str, str]:
        kept = {} if digest is None else {DIGEST_METADATA: digest}
        return {**kept, WRITE_METADATA: write_id}

    @staticmethod
    def info_from(key: str, answer: Any) -> ObjectInfo:
        metadata = answer.get("Metadata", {})
        modified = answer.get("LastModified")
        return ObjectInfo(
            key=key,
            size=answer["ContentLength"],
            etag=answer["ETag"],
            digest=metadata.get(DIGEST_METADATA),
            write_id=metadata.get(WRITE_METADATA),
            modified_at=None if modified is None else modified.timestamp(),
        )

    async def call(
        self,
        action: Callable[[], Result],
        *,
        doing: str,
        deadline_s: float,
        on_repeat: Callable[[], None] = lambda: None,
    ) -> Result:
        """Runs `action` in a thread until it succeeds, fails for good, or time or attempts are used up.

        Past the deadline the thread is left to its socket timeouts; its result is dropped.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline_s
        for attempt in range(MAX_ATTEMPTS):
            try:
                async with asyncio.timeout_at(end):
                    return await loop.run_in_executor(self._pool, action)
            except TimeoutError:
                raise StoreTimeout(f"{doing}: not done within {deadline_s:.3g} s") from None
            except StoreUnavailable as error:
                failure: StoreUnavailable = error
            except TlsUnusable as error:
                failure = StoreUnavailable(f"{doing}: {error}")
            except STORE_FAULTS as fault:
                outcome = translated(fault, doing=doing)
                outcome.args = (self._clean(str(outcome)), *outcome.args[1:])
                if not isinstance(outcome, StoreUnavailable):
                    raise outcome from None
                failure = outcome
            delay = self._backoff.delay_s(attempt)
            if attempt + 1 == MAX_ATTEMPTS or loop.time() + delay >= end:
                raise failure from None
            on_repeat()
            await asyncio.sleep(delay)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _clean(self, text: str) -> str:
        made_with = self._made_with
        secrets = (made_with[1].secret_access_key, made_with[1].session_token) if made_with is not None else ()
        for secret in filter(None, secrets):
            text = text.replace(secret, "***")
        return text

    async def close(self) -> None:
        """Does not wait for abandoned calls; they end with their socket timeouts."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._client is not None:
            self._client.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def checked_key(key: str) -> str:
    """The key, if every S3 store agrees on it. Some fold `a//b` and `a/./b` together, some keep them apart, some refuse
    them; a key must mean one object everywhere, and must not climb out of the configured prefix.
    """
    reason = _objection(key)
    if reason:
        raise InvalidKey(f"object key {key[:120]!r} {reason}")
    return key


def full_key(prefix: str, key: str) -> str:
    """The key as the store sees it: below the configured prefix, which may end in a slash or not."""
    stem = prefix.strip("/")
    return checked_key(f"{stem}/{checked_key(key)}" if stem else key)


def relative_key(prefix: str, key: str) -> str:
    stem = prefix.strip("/")
    return key.removeprefix(f"{stem}/") if stem else key


def _objection(key: str) -> str | None:
    if not key:
        return "is empty"
    if not key.isprintable():
        return "has control or unprintable characters"
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if size > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes"
    segments = key.split("/")
    if "" in segments:
        return "begins or ends with a slash, or has two in a row"
    if "." in segments or ".." in segments:
        return "has a '.' or '..' segment"
    return None
