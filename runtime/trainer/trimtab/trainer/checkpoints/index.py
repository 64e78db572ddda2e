"""What a checkpoint consists of, as signed JSON beside its files: a pointer names indexes, an index names the file of
every rank, and has the digest of each of its parts.

Everything but the tensors is in here, and is checked when it is read: nothing of a checkpoint can execute code.
"""

from __future__ import annotations

import hashlib
from typing import Annotated

import msgspec
from msgspec import Meta

FORMAT = 3
MAX_INDEX_BYTES = 64 << 20
MAX_POINTER_BYTES = 1 << 20
MAX_PART_BYTES = 1 << 30
MAX_HEADER_BYTES = 100 << 20
"""As much as readers of safetensors take."""
Count = Annotated[int, Meta(ge=0)]
Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
Name = Annotated[str, Meta(pattern=r"^[0-9a-z][0-9a-z.-]*(/[0-9a-z][0-9a-z.-]*)*$", max_length=512)]

HOW_TO_GO_ON = (
    "bring it back from a copy of the storage, or start a new job. An older checkpoint would not do: the steps after it"
    " are acknowledged, and their samples are never given out again"
)


class CheckpointDamaged(RuntimeError):
    """Something that the newest checkpoint needs is missing, is not what was written, or does not fit the model."""


class CheckpointFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The share of one rank. Parts have digests of their own, so that many are hashed, written, read and checked at
    once. So has the header, with which others plan what to read.
    """

    rank: Count
    name: Name
    size: Annotated[int, Meta(ge=1)]
    part_bytes: Annotated[int, Meta(ge=1, le=MAX_PART_BYTES)]
    """Of every part but the last."""
    digests: tuple[Sha256, ...]
    header_size: Annotated[int, Meta(ge=1, le=MAX_HEADER_BYTES)]
    header_sha256: Sha256

    def __post_init__(self) -> None:
        if len(self.digests) != -(-self.size // self.part_bytes):
            raise ValueError(f"{self.name} has {len(self.digests)} digests for {self.size} bytes")

    def part_size(self, number: int) -> int:
        return min(self.part_bytes, self.size - number * self.part_bytes)


class CheckpointIndex(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`step` updates are in the weights: it is their version, and the next step to ask rows for."""

    format: int = FORMAT
    epoch: Count
    step: Count
    lease_id: str
    """The last lease whose rows are in the weights."""
    world_size: Annotated[int, Meta(ge=1)]
    optimizer_steps: dict[str, Count]
    """Updates that each parameter has had, by which AdamW corrects its moments."""
    files: tuple[CheckpointFile, ...]

    def __post_init__(self) -> None:
        _check_format(self.format)
        if [file.rank for file in self.files] != list(range(self.world_size)):
            raise ValueError(f"it does not have one file for each of {self.world_size} ranks, in their order")


class IndexReference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An index that was committed."""

    step: Count
    epoch: Count
    name: Name
    size: Annotated[int, Meta(ge=1, le=MAX_INDEX_BYTES)]
    sha256: Sha256


class CheckpointPointer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`epoch` is of the trainer that may replace it, `checkpoints` are those that stay, newest first.

    `writer` is new in every write: stores derive ETags from the content, and two trainers that write the same must not
    both think that they won.
    """

    format: int = FORMAT
    epoch: Count
    moves: Count
    """How often it was replaced: a process that has seen a later one knows an older one for what it is."""
    writer: str
    checkpoints: tuple[IndexReference, ...] = ()

    def __post_init__(self) -> None:
        _check_format(self.format)


def _check_format(found: int) -> None:
    if found != FORMAT:
        raise ValueError(
            f"it has format {found}, and this version of Trimtab reads {FORMAT}: finish the job with the version that"
            " began it"
        )


def sha256_of(body: bytes | bytearray | memoryview) -> str:
    return hashlib.sha256(body).hexdigest()


def check_digest(found: str, *, expected: str, where: str) -> None:
    if found != expected:
        raise CheckpointDamaged(f"{where} has the SHA-256 {found}, written was {expected}; {HOW_TO_GO_ON}")
