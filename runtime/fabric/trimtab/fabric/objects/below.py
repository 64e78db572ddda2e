"""Objects below a prefix as files of a folder, whole and of the versions that are there now. What an earlier process
fetched and is still the same is not fetched again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import structlog

from trimtab.fabric.objects.client import ObjectInfo, ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.objects.upload import all_or_first_error

_log = structlog.get_logger(__name__)
_FILES_AT_ONCE = 4
# A download goes on where it stopped when the process comes back, so the bound only has to end one that hangs.
_PATIENCE_S = 120.0
_SLOWEST_BYTES_PER_S = 1 << 20
_MARK = ".etag"

Wanted = Callable[[PurePosixPath], bool]
"""Whether an object is wanted, by its path below the prefix."""


class NothingThere(Exception):
    """Neither an object of the key nor one below it that is wanted."""


class NoRoom(Exception):
    """The folder's disk is smaller than what is to come; the message has the figures."""


async def fetch_below(store: ObjectStore, key: str, home: Path, *, wanted: Wanted) -> Path:
    """The object `key` as a file in `home`, or `home` with those of the objects below it that are wanted. Raises
    NothingThere, NoRoom, or what the store says.
    """
    single = None if key.endswith("/") or not key else await _head(store, key)
    if single is not None:
        found = {PurePosixPath(PurePosixPath(key).name): single}
    else:
        below = f"{key.rstrip('/')}/" if key.strip("/") else ""
        found = {}
        async for info in store.scan(below):
            path = PurePosixPath(info.key.removeprefix(below))
            if not info.key.endswith("/") and ".." not in path.parts and not path.is_absolute() and wanted(path):
                found[path] = info
    if not found:
        raise NothingThere
    files = {home / path: info for path, info in found.items()}
    await asyncio.to_thread(_clear, home, set(files), wanted)
    missing = {path: info for path, info in files.items() if not _is_there(path, info)}
    _refuse_too_large(missing, home)
    _log.info(
        "fetching_objects",
        bucket=store.bucket,
        key=key,
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
    """Hidden: libraries that read folders know no such files."""
    return path.with_name(f".{path.name}{_MARK}")


def _clear(home: Path, files: set[Path], wanted: Wanted) -> None:
    """Objects that are gone must not stay among the files. Of those that are not, also what is half there stays; and
    what others fetched to the same folder, who want other files."""
    for path in home.rglob("*"):
        whole = path
        if path.name.startswith(".") and path.name.endswith(_MARK):
            whole = path.with_name(path.name[1:].removesuffix(_MARK))
        for end in (".partial", ".ranges"):
            if path.name.endswith(end) and path not in files:
                whole = path.with_name(path.name.removesuffix(end))
        if path.is_file() and whole not in files and wanted(PurePosixPath(whole.relative_to(home))):
            path.unlink()


def _refuse_too_large(missing: dict[Path, ObjectInfo], home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    needed, free = sum(info.size for info in missing.values()), shutil.disk_usage(home).free
    if needed > free:
        raise NoRoom(f"takes {needed} bytes and {home} has {free}")
