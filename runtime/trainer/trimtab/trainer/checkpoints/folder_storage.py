"""Checkpoints in a folder, which may lie on a volume that many machines mount.

The pointer is moved without a lock, which a dead trainer could hold for ever. Each move is a file of its own, numbered
one higher than the one it replaces, and the highest is in force. Files get their names by link(2), which fails when the
name is taken, on network file systems too: of two trainers that replace the same pointer one gets the number.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from trimtab.fabric.durable_files import sync_folder
from trimtab.fabric.objects.errors import StoreTimeout, StoreUnavailable
from trimtab.fabric.objects.upload import PartSource, all_or_first_error
from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, MAX_POINTER_BYTES, CheckpointDamaged
from trimtab.trainer.checkpoints.parts import AT_ONCE
from trimtab.trainer.checkpoints.storage import CHECKPOINTS, FileMissing, PointerMoved, SeenPointer, epoch_of

Result = TypeVar("Result")
_CALL_DEADLINE_S = 60.0
_TRANSFER_DEADLINE_S = 3600.0
_NAMED_AFTER_ITS_EPOCH = re.compile(r"^\d{12}-")
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
        # In the folder itself: a file is put under its name by renaming, which does not work between volumes.
        self._unfinished = root / "unfinished"

    def where(self, name: str) -> str:
        return str(self._root / name)

    @property
    def pointer(self) -> str:
        return str(self._pointers)

    def lay_out(self) -> None:
        """Make the folders, and prove that links are refused where there is a file. Raises OSError."""
        for folder in (self._root / CHECKPOINTS, self._unfinished, self._pointers):
            folder.mkdir(parents=True, exist_ok=True)
        probe = self._unfinished / f"probe-{uuid.uuid4().hex}"
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

    async def write(self, name: str, source: PartSource) -> None:
        made = self._unfinished / f"{epoch_of(name) or 0:012d}-{uuid.uuid4().hex}"
        turn = asyncio.Semaphore(AT_ONCE)
        await self._call(lambda: made.write_bytes(b""))

        async def write(number: int) -> None:
            async with turn:
                await self._call(
                    lambda: _write_at(made, number * source.part_bytes, source.part(number)),
                    deadline_s=_TRANSFER_DEADLINE_S,
                )

        try:
            await all_or_first_error(write(number) for number in range(-(-source.size // source.part_bytes)))
            await self._call(lambda: self._rename(made, name), deadline_s=_TRANSFER_DEADLINE_S)
        finally:
            await self._call(lambda: made.unlink(missing_ok=True))

    async def put(self, name: str, body: bytes) -> None:
        made = self._unfinished / uuid.uuid4().hex

        def put() -> None:
            _write_durably(made, body)
            self._rename(made, name)

        await self._call(put)

    def _rename(self, made: Path, name: str) -> None:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(target)
        sync_folder(target.parent)
        sync_folder(target.parent.parent)

    async def get(self, name: str, *, max_bytes: int) -> bytes:
        body = await self._call(lambda: _beginning(self._root / name, count=max_bytes + 1))
        if len(body) > max_bytes:
            raise CheckpointDamaged(f"{self.where(name)} has more than the {max_bytes} bytes written; {HOW_TO_GO_ON}")
        return body

    async def read(self, name: str, into: memoryview, *, start: int, size: int) -> int:
        def read() -> int:
            source = (self._root / name).absolute()
            with source.open("rb", buffering=0) as file:
                found = os.fstat(file.fileno()).st_size
                if found != size:
                    raise CheckpointDamaged(f"{source} has {found} bytes, written were {size}; {HOW_TO_GO_ON}")
                return _read_at(file.fileno(), start, into)

        return await self._call(read, deadline_s=_TRANSFER_DEADLINE_S)

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
            for file in self._unfinished.iterdir():
                epoch = int(file.name[:12]) if _NAMED_AFTER_ITS_EPOCH.match(file.name) else None
                # Small ones are there for a moment and say nothing of their epoch.
                with contextlib.suppress(FileNotFoundError):
                    old = time.time() - file.stat().st_mtime > _SURELY_ABANDONED_S
                    if old if epoch is None else epoch < before_epoch:
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
        prepared = self._unfinished / uuid.uuid4().hex
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
        sync_folder(self._pointers)
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


def _write_at(path: Path, position: int, body: bytearray) -> None:
    left = memoryview(body)
    with path.open("r+b", buffering=0) as file:
        while left:
            written = os.pwrite(file.fileno(), left, position)
            left, position = left[written:], position + written


def _read_at(descriptor: int, start: int, into: memoryview) -> int:
    done = 0
    while done < len(into) and (count := os.preadv(descriptor, [into[done:]], start + done)):
        done += count
    return done


def _bounded(pointer: Path) -> bytes:
    body = _beginning(pointer, count=MAX_POINTER_BYTES + 1)
    if len(body) > MAX_POINTER_BYTES:
        raise CheckpointDamaged(f"{pointer} has more than {MAX_POINTER_BYTES} bytes; {HOW_TO_GO_ON}")
    return body


def _beginning(path: Path, *, count: int) -> bytes:
    with path.open("rb") as file:
        return file.read(count)


def _write_durably(path: Path, body: bytes) -> None:
    with path.open("xb") as file:
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
