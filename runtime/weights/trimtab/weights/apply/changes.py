"""What engines take from an update: the elements that changed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from trimtab.weights.apply.journal import Record
from trimtab.weights.apply.transaction import PreparedUpdate
from trimtab.weights.layout import Tensor


@dataclass(frozen=True)
class SparseChange:
    """New values of elements of one tensor, which are unsigned integers with the bits of its dtype."""

    tensor: Tensor
    indices: npt.NDArray[np.int64]
    """Into the flattened tensor."""
    values: npt.NDArray[np.unsignedinteger[Any]]


@dataclass(frozen=True)
class _Share:
    """The part of a record that falls into one tensor: `first` to `last` are entries of the record."""

    tensor: Tensor
    first: int
    last: int


def sparse_changes(update: PreparedUpdate) -> Iterator[SparseChange]:
    """The changed elements, one block at a time; a tensor that spans blocks comes once for each of them.

    Before the commit as well as after it, until the update is closed. A block that was put whole yields all its
    elements. The indices are made here, eight bytes each; the values lie in the journal and are read-only.
    """
    layout = update.journal.layout
    for record in update.journal.records:
        block = layout.blocks[record.block]
        positions, values = update.journal.positions(record), update.journal.values(record)
        for share in _shares(update, record):
            # Made in the call, so that this frame does not keep one set of indices while it makes the next.
            shift = (block.start - share.tensor.start) // block.element.width
            yield SparseChange(share.tensor, _indices(positions, share, shift), values[share.first : share.last])


def _indices(positions: npt.NDArray[np.uint32] | None, share: _Share, shift: int) -> npt.NDArray[np.int64]:
    if positions is None:
        return np.arange(share.first + shift, share.last + shift, dtype=np.int64)
    indices = positions[share.first : share.last].astype(np.int64)
    indices += shift
    return indices


def _shares(update: PreparedUpdate, record: Record) -> Iterator[_Share]:
    layout = update.journal.layout
    block = layout.blocks[record.block]
    positions = update.journal.positions(record)
    width = block.element.width
    for tensor in layout.tensors_in(block):
        low, high = (max(tensor.start, block.start), min(tensor.end, block.end))
        first, last = ((low - block.start) // width, (high - block.start) // width)
        if positions is not None:
            first, last = (int(entry) for entry in np.searchsorted(positions, np.array([first, last], np.uint32)))
        if first < last:
            yield _Share(tensor, first, last)
