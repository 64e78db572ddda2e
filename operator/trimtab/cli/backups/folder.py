"""A backup on disk: it appears under its name whole, or not at all, and is read only when every file is as written."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trimtab.cli.backups.contents import INDEX, BackupIndex, FileRecord, UnusableBackup, decoded, encoded
from trimtab.fabric.durable_files import sync_folder

_PARTIAL = ".partial"
_CHUNK_BYTES = 1 << 20


class NewBackup:
    """Being written, in a folder beside the one that it will be."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self._folder = target.with_name(f"{target.name}{_PARTIAL}")

    def path(self, name: str) -> Path:
        """Where a file is to be written."""
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def begin(self) -> None:
        """What a backup that was cut short has left makes room for this one."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True, mode=0o700)

    def files(self) -> dict[str, FileRecord]:
        """As they can be read now, all of them on the disk."""
        paths = sorted(path for path in self._folder.rglob("*") if path.is_file())
        return {path.relative_to(self._folder).as_posix(): _recorded(path, sync=True) for path in paths}

    def finish(self, index: BackupIndex) -> None:
        with self.path(INDEX).open("wb") as file:
            file.write(encoded(index))
            file.flush()
            os.fsync(file.fileno())
        for folder in (*(path for path in self._folder.rglob("*") if path.is_dir()), self._folder):
            sync_folder(folder)
        self._folder.replace(self.target)
        sync_folder(self.target.parent)

    def give_up(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def new_backup(target: Path) -> Iterator[NewBackup]:
    """Removed again unless it is finished in the block. A folder that is there is never written to."""
    backup = NewBackup(target)
    backup.begin()
    try:
        yield backup
    finally:
        backup.give_up()


def checked(folder: Path) -> BackupIndex:
    """What the backup holds, once all of it was read. Raises UnusableBackup with the file that is wrong."""
    if folder.name.endswith(_PARTIAL):
        raise UnusableBackup(f"{folder} is what an interrupted backup has left: it is not whole; take another one")
    file = folder / INDEX
    if not file.is_file():
        raise UnusableBackup(f"{folder} has no {INDEX}: it is no backup, or not a whole one")
    index = decoded(file.read_bytes(), where=str(file))
    for name, record in index.files.items():
        path = folder / name
        if ".." in path.parts or not path.resolve().is_relative_to(folder.resolve()):
            raise UnusableBackup(f"{file} names {name}, which is not in the backup")
        if not path.is_file():
            raise UnusableBackup(f"{path} is missing: the backup is not whole; take another one")
        found = _recorded(path)
        if found.size != record.size:
            raise UnusableBackup(f"{path} has {found.size} bytes, written were {record.size}; take another backup")
        if found != record:
            raise UnusableBackup(f"{path} has another checksum than was written: it is damaged; take another backup")
    for stream in index.streams:
        if stream.file not in index.files:
            raise UnusableBackup(f"{file} has no checksum of {stream.file}: it is no backup of this version")
    return index


def _recorded(path: Path, *, sync: bool = False) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
            size += len(chunk)
    return FileRecord(size, digest.hexdigest())
