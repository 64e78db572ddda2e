"""The files of a host copy: where they lie, what each of them means, the lock that keeps a second writer out, and the
state file that says which version the copy holds. Replacing that file moves the copy to its next version.

The folder belongs to the engines too: files of other names in it are left alone. The spool belongs to one copy.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from trimtab.fabric.durable_files import sync_folder
from trimtab.weights.apply.durable import remove, rename
from trimtab.weights.digests import root_digest
from trimtab.weights.layout import StateLayout

_LOCK_NAME = "copy.lock"
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """Names this start of the machine; None where it has no name."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


class CopyInUse(Exception):
    """Another process, or another object of this one, has the copy open."""


class DamagedCopy(Exception):
    """The copy is not what it says it is. It has to be built again from the store."""


class DamagedJournal(Exception):
    """A journal that cannot be applied. Past its commit point the copy is lost with it."""


class InvalidUpdate(ValueError):
    """An update or a first fill that its caller has put together wrongly. The copy is untouched."""


def take_lock(file: Path, locks: ExitStack) -> None:
    """Held until the stack is closed or the process ends. Raises CopyInUse when another has it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    locks.callback(os.close, descriptor)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CopyInUse(f"{file.parent} is in use by another host copy; close that one first") from None


@dataclass(frozen=True)
class CopyFiles:
    """A copy exists if and only if there is a state file."""

    folder: Path
    spool: Path

    @property
    def model(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def building(self) -> Path:
        """Not `*.safetensors`: engines load whatever is called that."""
        return self.folder / "model.safetensors.building"

    @property
    def state(self) -> Path:
        return self.folder / "copy.json"

    @property
    def next_state(self) -> Path:
        return self.folder / "copy.json.new"

    @property
    def writing(self) -> Path:
        return self.spool / "journal.writing"

    @property
    def prepared(self) -> Path:
        return self.spool / "journal.prepared"

    @property
    def committed(self) -> Path:
        """Renaming the prepared journal to this is the commit point."""
        return self.spool / "journal.committed"

    def lock(self) -> ExitStack:
        """Held until the stack is closed or the process ends. Both folders are locked: two copies that share a spool
        would drop one another's journals.
        """
        with ExitStack() as locks:
            for folder in (self.folder, self.spool):
                take_lock(folder / _LOCK_NAME, locks)
            return locks.pop_all()

    def drop_unfinished(self) -> None:
        """Removes what never reached its point of no return."""
        remove(self.writing)
        remove(self.prepared)
        remove(self.building)
        remove(self.next_state)

    def discard(self) -> None:
        """Removes the copy. The state goes first: without it nothing else counts, wherever this is interrupted."""
        remove(self.state)
        sync_folder(self.folder)
        remove(self.committed)
        remove(self.model)
        self.drop_unfinished()


class Held(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version of the weights: the XXH3 of every block of the layout, and the root over them."""

    epoch: int
    version: int
    root: str
    digests: tuple[bytes, ...]

    def __str__(self) -> str:
        return f"version {self.version} of epoch {self.epoch}"

    def check(self, layout: StateLayout) -> None:
        """Raises InvalidUpdate when this cannot be a version of the layout."""
        if len(self.digests) != len(layout.blocks):
            raise InvalidUpdate(f"{self} has {len(self.digests)} digests, its layout has {len(layout.blocks)} blocks")
        if self.root != (root := root_digest(layout, self.digests)):
            raise InvalidUpdate(f"{self} has the root {self.root}, its digests give {root}")


class CopyState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of the state file."""

    format: Literal[1] = 1
    layout_digest: str
    held: Held
    boot: str | None = None
    """The start of the machine in which it was written, if its disk was not waited for."""


def write_state(files: CopyFiles, *, layout_digest: str, held: Held, sync: Callable[[], None]) -> None:
    """What is in the machine's memory outlives every process, and with the machine the pod goes too. So its disk is not
    waited for, which for a version that changes a little everywhere means all of the model; and a copy that lies there
    after the machine was started again is not trusted. Where starts cannot be told apart, `sync` brings it to the disk.
    """
    boot = boot_id()
    if boot is None:
        sync()
    state = CopyState(layout_digest=layout_digest, held=held, boot=boot)
    with files.next_state.open("wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        os.fsync(file.fileno())
    rename(files.next_state, files.state)


def read_state(files: CopyFiles) -> CopyState | None:
    """None when there is none; DamagedCopy when it cannot be read."""
    try:
        return msgspec.json.decode(files.state.read_bytes(), type=CopyState)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCopy(f"{files.state} is not the state of a host copy: {error}") from None
