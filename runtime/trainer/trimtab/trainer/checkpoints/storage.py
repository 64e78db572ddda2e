"""Where checkpoints lie. There are two such places: an object store, and a folder that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


class PointerMoved(Exception):
    """Another trainer moved the pointer since it was read."""


class FileMissing(Exception):
    """There is nothing under the name."""


@dataclass(frozen=True, kw_only=True)
class SeenPointer:
    """A pointer as it was read. The tag stands for exactly this write of it."""

    body: bytes
    tag: str


class CheckpointPlace(Protocol):
    """Names are relative, with slashes. What has been put is durable, and appears whole or not at all.

    A place that is away for a while raises StoreUnavailable or StoreTimeout.
    """

    @property
    def workshop(self) -> Path:
        """A folder of this machine in which files are made that are then put into the place."""

    def where(self, name: str) -> str:
        """How people find it."""

    @property
    def pointer(self) -> str:
        """How people find the pointer."""

    async def put_file(self, name: str, source: Path) -> None:
        """The source may be gone afterwards."""

    async def put(self, name: str, body: bytes) -> None: ...

    async def get(self, name: str, *, max_bytes: int) -> bytes: ...

    async def beginning(self, name: str, *, count: int) -> bytes:
        """The first bytes, fewer when there are no more."""

    async def fetch(self, name: str, target: Path, *, size: int) -> None:
        """Makes a file readable under a path on this machine. What is larger than `size` counts as damaged."""

    async def names(self) -> list[str]: ...

    async def delete(self, name: str) -> None: ...

    async def clear_unfinished(self, *, before_epoch: int) -> None:
        """Remove what trainers of earlier epochs had begun to write and that never got a name."""

    async def read_pointer(self) -> SeenPointer | None: ...

    async def swap_pointer(self, body: bytes, *, seen: SeenPointer | None) -> None:
        """Replace exactly what was seen; PointerMoved when that is no longer in force."""


def unfinished_folder(workshop: Path, *, epoch: int, rank: int) -> Path:
    """Where a rank makes its files: of its own, so that it disturbs nobody and its successor knows what to remove."""
    return workshop / f"{epoch:012d}-{rank:05d}"


def abandoned_folders(workshop: Path, *, before_epoch: int) -> list[Path]:
    if not workshop.is_dir():
        return []
    return [path for path in workshop.iterdir() if path.name[:12].isdigit() and int(path.name[:12]) < before_epoch]
