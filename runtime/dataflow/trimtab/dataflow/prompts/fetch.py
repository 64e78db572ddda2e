"""Brings a source from object storage to the pod's scratch folder, where it is read like any other."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import structlog

from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.objects.errors import InvalidKey, ObjectNotFound, StoreRefused, StoreUnauthorized
from trimtab.fabric.objects.upload import all_or_first_error
from trimtab.fabric.settings import ObjectStoreSettings

_log = structlog.get_logger(__name__)
SCHEME = "s3://"
_FILES_AT_ONCE = 4
# A download goes on where it stopped when the pod comes back, so the bound only has to end one that hangs.
_PATIENCE_S = 120.0
_SLOWEST_BYTES_PER_S = 1 << 20
_MARK = ".etag"

Wanted = Callable[[PurePosixPath], bool]
"""Whether a file is part of the source, by its path below the prefix."""


class PromptFetcher:
    """The job's object store, with its address and credentials but any bucket, and a folder for what comes from it."""

    def __init__(self, settings: ObjectStoreSettings, scratch: Path) -> None:
        self._settings = settings
        self._scratch = scratch

    async def fetch(self, uri: str, *, source: str, wanted: Wanted) -> Path:
        """The object `uri` as a file, or those of the objects below it that are wanted as a folder. What an earlier
        process fetched and is still the same is not fetched again."""
        bucket, _, key = uri.removeprefix(SCHEME).partition("/")
        settings = self._settings.model_copy(update={"bucket": bucket, "prefix": ""})
        home = self._scratch / f"{source}-{hashlib.sha256(uri.encode()).hexdigest()[:12]}"
        try:
            async with ObjectStore(settings) as store:
                return await self._fetch(store, key, uri, home=home, source=source, wanted=wanted)
        except (StoreUnauthorized, StoreRefused, InvalidKey) as error:
            raise PromptSourceError(f"data.prompts[{source}]: {uri} cannot be read: {error}") from None

    async def _fetch(self, store: ObjectStore, key: str, uri: str, *, home: Path, source: str, wanted: Wanted) -> Path:
        single = None if key.endswith("/") or not key else await _head(store, key)
        if single is not None:
            found = {PurePosixPath(PurePosixPath(key).name): single}
        else:
            below = f"{key.rstrip('/')}/" if key.strip("/") else ""
            found = {}
            async for info in store.scan(below):
                path = PurePosixPath(info.key.removeprefix(below))
                if not info.key.endswith("/") and wanted(path):
                    found[path] = info
        if not found:
            raise PromptSourceError(f"data.prompts[{source}]: there is neither {uri} nor a file of the source below it")
        files = {home / path: info for path, info in found.items()}
        await asyncio.to_thread(_clear, home, set(files))
        missing = {path: info for path, info in files.items() if not _is_there(path, info)}
        _refuse_too_large(missing, home, source=source)
        _log.info(
            "fetching_prompts",
            source=source,
            uri=uri,
            files=len(missing),
            bytes=sum(info.size for info in missing.values()),
            kept=len(files) - len(missing),
        )
        turn = asyncio.Semaphore(_FILES_AT_ONCE)

        async def bring(path: Path, info: ObjectInfo) -> None:
            async with turn:
                await _download(store, path, info)

        await all_or_first_error(bring(path, info) for path, info in missing.items())
        return next(iter(files)) if single is not None else home


async def _head(store: ObjectStore, key: str) -> ObjectInfo | None:
    try:
        return await store.head(key)
    except ObjectNotFound:
        return None


async def _download(store: ObjectStore, path: Path, info: ObjectInfo) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fetched = await download_to_file(
        store,
        info.key,
        path,
        deadline_s=_PATIENCE_S + info.size / _SLOWEST_BYTES_PER_S,
        shape=DownloadShape(max_bytes=info.size),
    )
    # After the file: without the mark, or with an older one, it is fetched again.
    _mark(path).write_text(fetched.etag)


def _is_there(path: Path, info: ObjectInfo) -> bool:
    mark = _mark(path)
    return path.is_file() and path.stat().st_size == info.size and mark.is_file() and mark.read_text() == info.etag


def _mark(path: Path) -> Path:
    return path.with_name(path.name + _MARK)


def _clear(home: Path, files: set[Path]) -> None:
    """Objects that are gone must not stay part of the source. Of those that are not, also what is half there stays."""
    for path in home.rglob("*"):
        whole = path
        for end in (_MARK, ".partial", ".ranges"):
            if path.name.endswith(end) and path not in files:
                whole = path.with_name(path.name.removesuffix(end))
        if path.is_file() and whole not in files:
            path.unlink()


def _refuse_too_large(missing: dict[Path, ObjectInfo], home: Path, *, source: str) -> None:
    home.mkdir(parents=True, exist_ok=True)
    needed, free = sum(info.size for info in missing.values()), shutil.disk_usage(home).free
    if needed > free:
        raise PromptSourceError(
            f"data.prompts[{source}] takes {needed} bytes and {home} has {free}; give the dataflow pod a larger volume"
        )
