"""Where a rank's shards lie in its safetensors file, with the metadata of torch's HuggingFaceStorageWriter, so that its
reader puts shards together for another number of ranks.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec
import torch
from msgspec import Meta

from trimtab.trainer.checkpoints.index import HOW_TO_GO_ON, CheckpointDamaged

_LENGTH_BYTES = 8
_ALIGNMENT = 8
_SHARDING = "DCP_SHARDING_INFO"
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a tensor, and where in the whole it begins."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    offsets: tuple[int, ...]

    @property
    def size(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True, kw_only=True)
class PlacedShard:
    shard: Shard
    begin: int
    """Its first byte in the file."""


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """`header` is what the file begins with; the shards follow without a gap."""

    header: bytes
    shards: tuple[PlacedShard, ...]

    @property
    def size(self) -> int:
        return len(self.header) + sum(placed.shard.size for placed in self.shards)

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> FileLayout:
        """The widest elements first, so that all are aligned."""
        ordered = sorted(shards, key=lambda shard: (-shard.dtype.itemsize, shard.name))
        sharding = {shard.name: {"saved_offsets": shard.offsets} for shard in ordered}
        fields: dict[str, object] = {
            "__metadata__": {_SHARDING: json.dumps(sharding), "DCP_VERSION": "1.0", "format": "pt"}
        }
        position = 0
        for shard in ordered:
            end = position + shard.size
            fields[shard.name] = {
                "dtype": _NAMES[shard.dtype],
                "shape": shard.shape,
                "data_offsets": (position, end),
            }
            position = end
        text = msgspec.json.encode(fields)
        text += b" " * (-len(text) % _ALIGNMENT)
        header = len(text).to_bytes(_LENGTH_BYTES, "little") + text
        return cls(header=header, shards=_placed(ordered, begin=len(header)))

    @classmethod
    def read(cls, header: bytes, *, where: str) -> FileLayout:
        """From what `of` wrote."""
        try:
            fields = msgspec.json.decode(header[_LENGTH_BYTES:], type=dict[str, msgspec.Raw])
            metadata = msgspec.json.decode(fields.pop("__metadata__", msgspec.Raw(b"{}")), type=dict[str, str])
            offsets = msgspec.json.decode(metadata.get(_SHARDING, "{}"), type=dict[str, _Sharding])
            entries = {name: msgspec.json.decode(entry, type=_Entry) for name, entry in fields.items()}
            shards = [
                Shard(
                    name=name,
                    dtype=_DTYPES[entry.dtype],
                    shape=entry.shape,
                    offsets=offsets[name].saved_offsets if name in offsets else (0,) * len(entry.shape),
                )
                for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets)
            ]
        except (msgspec.DecodeError, UnicodeDecodeError, KeyError) as error:
            raise CheckpointDamaged(f"the header of {where} cannot be read ({error}); {HOW_TO_GO_ON}") from None
        return cls(header=header, shards=_placed(shards, begin=len(header)))


class _Entry(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[_Count, ...]
    data_offsets: tuple[_Count, _Count]


class _Sharding(msgspec.Struct, frozen=True):
    saved_offsets: tuple[_Count, ...]


def _placed(shards: Iterable[Shard], *, begin: int) -> tuple[PlacedShard, ...]:
    placed = []
    for shard in shards:
        placed.append(PlacedShard(shard=shard, begin=begin))
        begin += shard.size
    return tuple(placed)
