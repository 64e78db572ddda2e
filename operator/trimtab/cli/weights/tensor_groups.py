"""What a version changed, by groups of like tensors: those whose names differ only in the number of their layer."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import msgspec

from trimtab.weights.layout import StateLayout, Tensor
from trimtab.weights.store.manifest import Piece

_LAYER = re.compile(r"(?<![^.])\d+(?![^.])")
_NAMED = 3


class TensorGroup(msgspec.Struct, frozen=True, kw_only=True):
    """`blocks` of `of_blocks` changed, and `tensors` lie in them. Small tensors of several groups share a block."""

    name: str
    tensors: int
    blocks: int
    of_blocks: int
    modes: dict[str, int]
    bytes: int
    largest: int


def tensor_groups(layout: StateLayout, pieces: Sequence[Piece]) -> list[TensorGroup]:
    """Those with changes, the largest first."""
    names = {block.index: _group_name(list(layout.tensors_in(block))) for block in layout.blocks}
    of_blocks = Counter(names.values())
    by_group: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_group.setdefault(names[piece.block], []).append(piece)
    groups = [
        TensorGroup(
            name=name,
            tensors=len({tensor.name for piece in found for tensor in layout.tensors_in(layout.blocks[piece.block])}),
            blocks=len(found),
            of_blocks=of_blocks[name],
            modes=dict(Counter(piece.mode for piece in found)),
            bytes=sum(piece.size for piece in found),
            largest=max(piece.size for piece in found),
        )
        for name, found in by_group.items()
    ]
    return sorted(groups, key=lambda group: group.bytes, reverse=True)


def _group_name(tensors: Sequence[Tensor]) -> str:
    names = list(dict.fromkeys(_LAYER.sub("*", tensor.name) for tensor in tensors))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
