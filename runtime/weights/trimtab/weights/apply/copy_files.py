"""Where the files of a host copy lie, what each of them means, and the lock that keeps a second writer out.

The folder belongs to the engines too: files of other names in it are left alone. The spool belongs to one copy.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from trimtab.weights.apply.durable import remove, sync_folder
from trimtab.weights.apply.errors import CopyInUse

_LOCK_NAME = "copy.lock"


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
class CopyPlaces:
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
