"""The key-value cache of the sequences that are being decoded: a row each, in arenas of rows of one capacity.

All rows of an arena attend together over one view of it, without copying keys and values first, and padded to at most
twice their length: a sequence that fills its row moves to the arena of twice the capacity. Rows are kept dense, so the
last one takes the place of one that ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

_SMALLEST = 64
_FIRST_SLOTS = 4

Owner = TypeVar("Owner")


@dataclass(frozen=True, kw_only=True)
class KvShape:
    """What one token takes in the cache, and where that is."""

    layers: int
    kv_heads: int
    head_size: int
    max_length: int
    device: torch.device
    dtype: torch.dtype

    def zeros(self, sequences: int, length: int) -> torch.Tensor:
        """(layers, keys and values, sequences, heads, length, head size)

        Zeros, because what is masked out is still multiplied: a stray NaN would reach the tokens that count.
        """
        size = (self.layers, 2, sequences, self.kv_heads, length, self.head_size)
        return torch.zeros(size, device=self.device, dtype=self.dtype)


class Row(Generic[Owner]):
    """The keys and values of one sequence."""

    def __init__(self, owner: Owner, arena: Arena[Owner], *, index: int, length: int) -> None:
        self.owner = owner
        self.arena = arena
        self.index = index
        self.length = length
        """Tokens whose keys and values are there."""

    @property
    def content(self) -> torch.Tensor:
        """(layers, keys and values, heads, length, head size)"""
        return self.arena.storage[:, :, self.index, :, : self.length]


class Arena(Generic[Owner]):
    """Rows of one capacity; `rows[i]` lies at index i of the storage."""

    def __init__(self, shape: KvShape, *, capacity: int) -> None:
        self._shape = shape
        self.capacity = capacity
        self.rows: list[Row[Owner]] = []
        self.storage = shape.zeros(0, capacity)

    def add(self, owner: Owner, content: torch.Tensor) -> Row[Owner]:
        index, length = len(self.rows), content.shape[-2]
        if index == self.storage.shape[2]:
            larger = self._shape.zeros(max(_FIRST_SLOTS, 2 * index), self.capacity)
            larger[:, :, :index] = self.storage
            self.storage = larger
        self.storage[:, :, index, :, :length] = content
        self.storage[:, :, index, :, length:] = 0
        row = Row(owner, self, index=index, length=length)
        self.rows.append(row)
        return row

    def remove(self, row: Row[Owner]) -> None:
        last = self.rows.pop()
        if last is not row:
            self.storage[:, :, row.index] = self.storage[:, :, last.index]
            last.index = row.index
            self.rows[row.index] = last
        if not self.rows:
            self.storage = self._shape.zeros(0, self.capacity)


class KvRows(Generic[Owner]):
    """All rows. It counts what they take; the batch that opens rows keeps to a limit."""

    def __init__(self, shape: KvShape) -> None:
        self.shape = shape
        self.used_tokens = 0
        """The capacities of all rows together."""
        self._arenas: dict[int, Arena[Owner]] = {}

    def capacity_for(self, length: int) -> int:
        capacity = _SMALLEST
        while capacity < length:
            capacity *= 2
        return max(length, min(capacity, self.shape.max_length))

    @property
    def arenas(self) -> list[Arena[Owner]]:
        """Those with rows in them, in an order that stays."""
        return [self._arenas[capacity] for capacity in sorted(self._arenas) if self._arenas[capacity].rows]

    @property
    def rows(self) -> list[Row[Owner]]:
        """In the order in which a step computes them."""
        return [row for arena in self.arenas for row in arena.rows]

    def open(self, owner: Owner, content: torch.Tensor) -> Row[Owner]:
        """A row that begins with these keys and values and has room for one more token at least."""
        capacity = self.capacity_for(content.shape[-2] + 1)
        arena = self._arenas.get(capacity)
        if arena is None:
            arena = self._arenas[capacity] = Arena(self.shape, capacity=capacity)
        self.used_tokens += capacity
        return arena.add(owner, content)

    def close(self, row: Row[Owner]) -> None:
        self.used_tokens -= row.arena.capacity
        row.arena.remove(row)

    def grow(self, row: Row[Owner]) -> Row[Owner]:
        """The same sequence in a larger row."""
        grown = self.open(row.owner, row.content)
        self.close(row)
        return grown
