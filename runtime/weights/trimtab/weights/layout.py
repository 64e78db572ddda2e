"""How weights lie in memory: a safetensors file, cut into blocks that are coded, verified and changed one by one.

Blocks follow from the header alone, never from what changed, so publishers and pools agree on them without a word.
"""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

BLOCK_BYTES = 16 << 20
"""The most a block has. Memory is counted in blocks: each worker thread holds about two."""
_OWN_BLOCK_BYTES = 4 << 20
_CUT_BYTES = 64
_ALIGNMENT = 8
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100 << 20
_METADATA = "__metadata__"


class InvalidLayout(ValueError):
    """A safetensors header that cannot be weights."""


@dataclass(frozen=True)
class ElementType:
    """What the codec needs to know of a dtype: its width, and whether its sign is a bit of its own (floats)."""

    width: int
    sign_magnitude: bool
    exponent_shift: int = 0
    """Where the exponent begins, for 16-bit floats only."""


ELEMENT_TYPES = {
    "F64": ElementType(8, True),
    "I64": ElementType(8, False),
    "U64": ElementType(8, False),
    "F32": ElementType(4, True),
    "I32": ElementType(4, False),
    "U32": ElementType(4, False),
    "BF16": ElementType(2, True, 7),
    "F16": ElementType(2, True, 10),
    "I16": ElementType(2, False),
    "U16": ElementType(2, False),
    "F8_E5M2": ElementType(1, True),
    "F8_E4M3": ElementType(1, True),
    "F8_E8M0": ElementType(1, False),
    "I8": ElementType(1, False),
    "U8": ElementType(1, False),
    "BOOL": ElementType(1, False),
}


@dataclass(frozen=True)
class Tensor:
    """A named tensor and where it lies in the data after the header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class Block:
    """A stretch of the data with one dtype: part of a large tensor, or several small ones."""

    index: int
    dtype: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def element(self) -> ElementType:
        return ELEMENT_TYPES[self.dtype]


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[Annotated[int, Meta(ge=0)], ...]
    data_offsets: tuple[int, int]


class _Notes(msgspec.Struct, frozen=True):
    metadata: dict[str, str] = msgspec.field(default_factory=dict, name=_METADATA)


@dataclass(frozen=True)
class StateLayout:
    """Everything a safetensors header says. `header` is its JSON as it stands in the file, padding included."""

    header: bytes
    tensors: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, tensors: Mapping[str, tuple[str, tuple[int, ...]]], *, metadata: Mapping[str, str] | None = None
    ) -> StateLayout:
        """A layout for tensors given as name: (dtype, shape); wide types first, then by dtype and name."""
        placed: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
        offset = 0
        for name, (dtype, shape) in sorted(tensors.items(), key=lambda item: (*_rank(item[1][0]), item[0])):
            size = _count(shape) * _element(name, dtype).width
            placed[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + size]}
            offset += size
        header = msgspec.json.encode(placed)
        return cls.parse(header + b" " * (-len(header) % _ALIGNMENT))

    @classmethod
    def parse(cls, header: bytes) -> StateLayout:
        """Raises InvalidLayout for gaps, overlaps, unknown dtypes and sizes that do not fit the shape."""
        if len(header) > _MAX_HEADER_BYTES:
            raise InvalidLayout(f"the header has {len(header)} bytes, more than {_MAX_HEADER_BYTES}")
        if len(header) % _ALIGNMENT:
            raise InvalidLayout(
                f"the header has {len(header)} bytes, not a multiple of {_ALIGNMENT}: pad it with spaces"
            )
        try:
            raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
            raw.pop(_METADATA, None)
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in raw.items()}
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidLayout(f"not a safetensors header: {error}") from None
        tensors = sorted(
            (Tensor(name, entry.dtype, entry.shape, *entry.data_offsets) for name, entry in entries.items()),
            key=lambda tensor: (tensor.start, tensor.end),
        )
        offset = 0
        for tensor in tensors:
            size = _count(tensor.shape) * _element(tensor.name, tensor.dtype).width
            if tensor.start != offset or tensor.end - tensor.start != size:
                raise InvalidLayout(f"{tensor.name}: bytes {tensor.start} to {tensor.end} leave a gap or do not fit it")
            if size and tensor.start % ELEMENT_TYPES[tensor.dtype].width:
                raise InvalidLayout(f"{tensor.name}: byte {tensor.start} is not aligned for {tensor.dtype}")
            offset = tensor.end
        return cls(header=header, tensors=tuple(tensors))

    @classmethod
    def read(cls, file: BinaryIO) -> StateLayout:
        """Of a safetensors file from its beginning. Raises InvalidLayout unless header and file have the same size."""
        size = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if _LENGTH_BYTES + length > size:
            raise InvalidLayout(f"a file of {size} bytes cannot have a header of {length}")
        layout = cls.parse(file.read(length))
        if size != len(layout.prefix) + layout.data_bytes:
            raise InvalidLayout(f"the file has {size} bytes, its header describes {layout.data_bytes} of data")
        return layout

    @cached_property
    def metadata(self) -> dict[str, str]:
        """Texts beside the tensors; none where they are something else."""
        try:
            return msgspec.json.decode(self.header, type=_Notes).metadata
        except (msgspec.DecodeError, UnicodeDecodeError):
            return {}

    @cached_property
    def data_bytes(self) -> int:
        return self.tensors[-1].end if self.tensors else 0

    @cached_property
    def prefix(self) -> bytes:
        """What stands in a file before the data."""
        return len(self.header).to_bytes(_LENGTH_BYTES, "little") + self.header

    @cached_property
    def digest(self) -> str:
        """Of the header and of how it is cut: readers that cut otherwise must not take blocks for theirs."""
        cut = f"blocks {BLOCK_BYTES} {_OWN_BLOCK_BYTES} {_CUT_BYTES}\n"
        return hashlib.sha256(cut.encode() + self.header).hexdigest()

    def tensors_in(self, block: Block) -> Iterator[Tensor]:
        """Those of which the block holds a part, in order; empty ones are in no block."""
        at = bisect_right(self.tensors, block.start, key=lambda tensor: tensor.end)
        while at < len(self.tensors) and self.tensors[at].start < block.end:
            if self.tensors[at].end > self.tensors[at].start:
                yield self.tensors[at]
            at += 1

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        spans: list[tuple[str, int, int]] = []
        present = [tensor for tensor in self.tensors if tensor.end > tensor.start]
        for dtype, run in groupby(present, key=lambda tensor: tensor.dtype):
            spans += ((dtype, start, end) for start, end in _cut(list(run)))
        return tuple(Block(index, *span) for index, span in enumerate(spans))


def _cut(tensors: list[Tensor]) -> Iterable[tuple[int, int]]:
    """Neighbours of one dtype in stretches of at most BLOCK_BYTES. A large tensor begins a new one, because its changes
    have statistics of their own; cuts are rounded to cache lines.
    """
    start, end = tensors[0].start, tensors[-1].end
    wanted = [start]
    for tensor in tensors:
        large = tensor.end - tensor.start >= _OWN_BLOCK_BYTES
        if large or tensor.end - wanted[-1] > BLOCK_BYTES:
            wanted.append(tensor.start)
        if large:
            wanted.append(tensor.end)
    cuts = sorted({start, end, *(position - (position - start) % _CUT_BYTES for position in wanted)})
    for low, high in pairwise(cuts):
        parts = -(-(high - low) // BLOCK_BYTES)
        step = -(-(high - low) // parts // _CUT_BYTES) * _CUT_BYTES
        for position in range(low, high, step):
            yield position, min(position + step, high)


def _rank(dtype: str) -> tuple[int, str]:
    element = ELEMENT_TYPES.get(dtype)
    return (-element.width if element else 0, dtype)


def _element(name: str, dtype: str) -> ElementType:
    if dtype not in ELEMENT_TYPES:
        raise InvalidLayout(f"{name}: dtype {dtype} is not supported; one of {', '.join(ELEMENT_TYPES)}")
    return ELEMENT_TYPES[dtype]


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for side in shape:
        count *= side
    return count
