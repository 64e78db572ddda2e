"""Where checkpoints are stored: in an object store or in a folder that all ranks share. Also which of the stored files
belong to which checkpoint, and which of them may be deleted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from trimtab.fabric.objects.upload import PartSource

CHECKPOINTS = "checkpoints"
_FOLDER = re.compile(rf"^{CHECKPOINTS}/(\d{{12}})-(\d{{12}})/")


class PointerMoved(Exception):
    """Another trainer moved the pointer since it was read."""


class FileMissing(Exception):
    """There is nothing under the name."""


@dataclass(frozen=True, kw_only=True)
class SeenPointer:
    """A pointer as it was read. The tag stands for exactly this write of it."""

    body: bytes
    tag: str


class CheckpointStorage(Protocol):
    """Names are relative, with slashes. What has been put is durable, and appears whole or not at all.

    A storage that is away for a while raises StoreUnavailable or StoreTimeout.
    """

    def where(self, name: str) -> str:
        """How people find it."""

    @property
    def pointer(self) -> str:
        """How people find the pointer."""

    async def write(self, name: str, source: PartSource) -> None:
        """A large file, several parts at a time."""

    async def put(self, name: str, body: bytes) -> None: ...

    async def get(self, name: str, *, max_bytes: int) -> bytes: ...

    async def read(self, name: str, into: memoryview, *, start: int, size: int) -> int:
        """As many bytes of a file as there is room for, or fewer where it ends; gives their number. A file of another
        size counts as damaged.
        """

    async def names(self) -> list[str]: ...

    async def delete(self, name: str) -> None: ...

    async def clear_unfinished(self, *, before_epoch: int) -> None:
        """Remove what trainers of earlier epochs had begun to write and that never got a name."""

    async def read_pointer(self) -> SeenPointer | None: ...

    async def swap_pointer(self, body: bytes, *, seen: SeenPointer | None) -> None:
        """Replace exactly what was seen; PointerMoved when that is no longer in force."""


def epoch_of(name: str) -> int | None:
    """Of the trainer that writes a checkpoint's file; None for anything else."""
    found = _FOLDER.match(name)
    return None if found is None else int(found[2])


def folder_of(*, step: int, epoch: int) -> str:
    """The epoch is in it because a trainer that should be dead may write the same step again, beside its successor."""
    return f"{CHECKPOINTS}/{step:012d}-{epoch:012d}"


def obsolete(names: Iterable[str], *, kept: Iterable[str], step: int, epoch: int) -> list[str]:
    """What the trainer of `epoch` may delete once it has committed `step`; `kept` are the indexes in the pointer.

    All of other checkpoints: older ones, and what a crash left of some that were never committed. But nothing of a
    higher epoch, which may be a successor's that is being written right now, and nothing that is not a checkpoint's.
    """
    folders = {name.rpartition("/")[0] for name in kept}
    doomed = []
    for name in names:
        found = _FOLDER.match(name)
        if found is None or name.rpartition("/")[0] in folders:
            continue
        its_step, its_epoch = int(found[1]), int(found[2])
        if its_epoch < epoch or (its_epoch == epoch and its_step <= step):
            doomed.append(name)
    return doomed
