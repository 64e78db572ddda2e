"""Checkpoints in a folder, which may lie on a volume that many machines mount.

The pointer is moved without a lock, which a dead trainer could hold for ever. Each move is a file of its own, numbered
one higher than the one it replaces, and the highest is in force. Files get their names by link(2), which fails when the
name is taken, on network file systems too: of two trainers that replace the same pointer one gets the number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, MAX_POINTER_BYTES, CheckpointDamaged
from trimtab.trainer.checkpoints.storage import CHECKPOINTS, FileMissing, PointerMoved, SeenPointer, abandoned_folders

Result = TypeVar("Result")
_CALL_DEADLINE_S = 60.0
_TRANSFER_DEADLINE_S = 3600.0
_COPY_BYTES = 4 << 20
_SPENT_KEPT = 100
_SURELY_ABANDONED_S = 86_400.0
_READ_ATTEMPTS = 5
# A file server that is away, or a volume that is full until it is cleared.
_PASSING = {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EAGAIN, errno.EBUSY, errno.ENOSPC, errno.EDQUOT}


class FolderStorage:
    """The folder of one policy."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pointers = root / "latest"

    @property
    def scratch(self) -> Path:
        """In the folder itself: a file is put under its name by renaming, which does not work between volumes."""
        return self._root / "unfinished"

    def where(self, name: str) -> str:
        return str(self._root / name)

    @property
    def pointer(self) -> str:
        return str(self._pointers)

    def lay_out(self) -> None:
        """Make the folders, and prove that links are refused where there is a file. Raises OSError."""
        for folder in (self._root / CHECKPOINTS, self.scratch, self._pointers):
            folder.mkdir(parents=True, exist_ok=True)
        probe = self.scratch / f"probe-{uuid.uuid4().hex}"
        second = probe.with_suffix(".link")
        try:
            _write_durably(probe, b"probe")
            second.hardlink_to(probe)
            try:
                second.hardlink_to(probe)
            except FileExistsError:
                return
            raise OSError(errno.ENOTSUP, "a link replaces the file that is there", str(self._root))
        finally:
            probe.unlink(missing_ok=True)
            second.unlink(missing_ok=True)

    async def put_file(self, name: str, source: Path) -> None:
        def put() -> None:
            target = self._root / name
            if target.exists() and not source.exists():
                return  # an attempt before this one got so far, and the name says what is in it
            target.parent.mkdir(parents=True, exist_ok=True)
            with source.open("rb") as file:
                os.fsync(file.fileno())
            source.replace(target)
            _sync_folder(target.parent)
            _sync_folder(target.parent.parent)

        await self._call(put, deadline_s=_TRANSFER_DEADLINE_S)

    async def put(self, name: str, body: bytes) -> None:
        def prepare() -> Path:
            source = self.scratch / uuid.uuid4().hex
            _write_durably(source, body)
            return source

        await self.put_file(name, await self._call(prepare))

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        body = await self.beginning(name, count=max_bytes + 1)
        if len(body) > max_bytes:
            raise CheckpointDamaged(f"{self.where(name)} has more than the {max_bytes} bytes written; {HOW_TO_GO_ON}")
        return body

    async def beginning(self, name: str, *, count: int) -> bytes:
        def read() -> bytes:
            with (self._root / name).open("rb") as file:
                return file.read(count)

        return await self._call(read)

    async def fetch(self, name: str, target: Path, *, size: int) -> str:
        """A copy: what is read from a volume twice may be something else the second time."""

        def copy() -> str:
            source = (self._root / name).absolute()
            found = source.stat().st_size
            if found != size:
                raise CheckpointDamaged(f"{source} has {found} bytes, written were {size}; {HOW_TO_GO_ON}")
            return _copied(source, target)

        return await self._call(copy, deadline_s=_TRANSFER_DEADLINE_S)

    async def names(self) -> list[str]:
        def scan() -> list[str]:
            files = (self._root / CHECKPOINTS).rglob("*")
            return [path.relative_to(self._root).as_posix() for path in files if path.is_file()]

        return await self._call(scan)

    async def delete(self, name: str) -> None:
        def remove() -> None:
            path = self._root / name
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                path.parent.rmdir()  # only when it is empty

        await self._call(remove)

    async def clear_unfinished(self, *, before_epoch: int) -> None:
        def clear() -> None:
            for folder in abandoned_folders(self.scratch, before_epoch=before_epoch):
                shutil.rmtree(folder, ignore_errors=True)
            # Small ones are there for a moment and say nothing of their epoch.
            for file in self.scratch.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    if file.is_file() and time.time() - file.stat().st_mtime > _SURELY_ABANDONED_S:
                        file.unlink()

        await self._call(clear)

    async def read_pointer(self) -> SeenPointer | None:
        def read() -> SeenPointer | None:
            for _ in range(_READ_ATTEMPTS):
                generation = self._generation()
                if generation == 0:
                    return None
                # Gone since it was listed: then there are many higher ones.
                with contextlib.suppress(FileNotFoundError):
                    return SeenPointer(body=_bounded(self._pointer(generation)), tag=str(generation))
            raise StoreUnavailable(f"{self._pointers} changes faster than it can be read")

        return await self._call(read)

    async def swap_pointer(self, body: bytes, *, seen: SeenPointer | None) -> None:
        await self._call(lambda: self._swap(body, generation=int(seen.tag) + 1 if seen else 1))

    def _swap(self, body: bytes, *, generation: int) -> None:
        target = self._pointer(generation)
        prepared = self.scratch / uuid.uuid4().hex
        _write_durably(prepared, body)
        try:
            try:
                target.hardlink_to(prepared)
            except FileExistsError:
                # A network file system repeats a request whose answer was lost, and then meets its own link.
                if prepared.stat().st_nlink < 2:
                    raise PointerMoved(str(target)) from None
        finally:
            prepared.unlink(missing_ok=True)
        _sync_folder(self._pointers)
        # Spent numbers are deleted, so a trainer that slept through a hundred moves finds its number free. It is not
        # the highest then, and it is never read. A listing after one's own link is never older than the link.
        if self._generation() != generation:
            target.unlink(missing_ok=True)
            raise PointerMoved(str(target))
        for spent in self._generations():
            if spent <= generation - _SPENT_KEPT:
                self._pointer(spent).unlink(missing_ok=True)

    def _generation(self) -> int:
        return max(self._generations(), default=0)

    def _generations(self) -> list[int]:
        return [int(path.stem) for path in self._pointers.iterdir() if path.suffix == ".json" and path.stem.isdigit()]

    def _pointer(self, generation: int) -> Path:
        return self._pointers / f"{generation:012d}.json"

    async def _call(self, action: Callable[[], Result], *, deadline_s: float = _CALL_DEADLINE_S) -> Result:
        """In a thread: a volume whose server is away stops the thread that touches it."""
        try:
            async with asyncio.timeout(deadline_s):
                return await asyncio.to_thread(action)
        except TimeoutError:
            raise StoreTimeout(f"{self._root}: not done within {deadline_s:.3g} s") from None
        except FileNotFoundError as error:
            raise FileMissing(str(error.filename)) from None
        except OSError as error:
            if error.errno in _PASSING:
                raise StoreUnavailable(f"{error.filename or self._root}: {error.strerror}") from None
            raise


def _copied(source: Path, target: Path) -> str:
    """The SHA-256 of what was copied, made of the same bytes."""
    digest = hashlib.sha256()
    buffer = bytearray(_COPY_BYTES)
    with source.open("rb", buffering=0) as reader, target.open("wb", buffering=0) as writer:
        while count := reader.readinto(buffer):
            part = memoryview(buffer)[:count]
            digest.update(part)
            while part:
                part = part[writer.write(part) :]
    return digest.hexdigest()


def _bounded(pointer: Path) -> bytes:
    with pointer.open("rb") as file:
        body = file.read(MAX_POINTER_BYTES + 1)
    if len(body) > MAX_POINTER_BYTES:
        raise CheckpointDamaged(f"{pointer} has more than {MAX_POINTER_BYTES} bytes; {HOW_TO_GO_ON}")
    return body


def _write_durably(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    """A name is durable when the folder that has it is."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
