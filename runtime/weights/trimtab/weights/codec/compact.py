"""Compact mode: positions and sizes of changes coded in the context of the old value's exponent.

A small step moves a weight to its neighbour the more likely the closer its neighbours are, and that is its exponent.
The receiver has the old weights, so elements of each exponent form a sequence of their own with its own gaps, and both
sides walk the block counting down to the next change of each class. Cost follows the entropy given the exponent.

A payload is one packed stream of tables (class of each exponent, changes of each class, frequencies of each class's
symbols) and then the words of the entropy coder: class by class, gap and size of every change.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.change import Elements, Positions, Sparse
from trimtab.weights.codec.kernels import Integer, kernel
from trimtab.weights.codec.ordering import difference, moved
from trimtab.weights.codec.rans import (
    LOWEST,
    SCALE,
    Frequencies,
    Slots,
    Words,
    bucket_of,
    normalised,
    put_number,
    put_symbol,
    slots_of,
    starts_of,
    take_number,
    take_symbol,
)
from trimtab.weights.codec.streams import DamagedPayload, pack, unpack
from trimtab.weights.layout import ElementType

_BITS = 16
_CONTEXTS = 256
_GAP_SYMBOLS = 128
_SIZE_SYMBOLS = 64
_SYMBOLS = _GAP_SYMBOLS + _SIZE_SYMBOLS
_SAMPLING = 61
"""One element in so many tells how common an exponent is."""
_TABLE_BITS = 100
"""About what the table of a class costs."""
_NEVER = np.iinfo(np.int64).max
_TABLE_BYTES = 4 + 2 * _SYMBOLS
_TABLE_LEVEL = 9
_MOST_WORDS = 4
"""Words that one change can need: two symbols, and up to 29 and 14 bits beside them."""

Classes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.uint32]
Gaps = npt.NDArray[np.uint32]
Sizes = npt.NDArray[np.uint16]


def encode(base: Elements, change: Sparse, element: ElementType) -> bytes:
    classes, changes = _classes_of(base, change.positions, element.exponent_shift)
    total = change.positions.size
    gaps, sizes = np.empty(total, dtype=np.uint32), np.empty(total, dtype=np.uint16)
    _collect(base, change.positions, change.values, classes, element.exponent_shift, changes, gaps, sizes)
    occurrences = np.zeros((changes.size, _SYMBOLS), dtype=np.int64)
    _count(gaps, sizes, changes, occurrences)
    frequencies = np.zeros((changes.size, _SYMBOLS), dtype=np.uint16)
    for row, table in zip(occurrences, frequencies, strict=True):
        normalised(row[:_GAP_SYMBOLS], table[:_GAP_SYMBOLS])
        normalised(row[_GAP_SYMBOLS:], table[_GAP_SYMBOLS:])
    words = np.empty(_MOST_WORDS * total + 4, dtype=np.uint32)
    begin = _write(gaps, sizes, changes, frequencies, words)
    tables = np.concatenate([classes, changes.view(np.uint8), frequencies.ravel().view(np.uint8)])
    return pack([tables], level=_TABLE_LEVEL) + bytes(words[begin:].data)


def decode(base: Elements, payload: bytes | memoryview, element: ElementType, out: Elements) -> Positions:
    """`out` holds the base and gets the changes; returns where they are."""
    classes, changes, frequencies, words = _parse(memoryview(payload))
    total = int(changes.sum(dtype=np.uint64))
    if total > base.size:
        raise DamagedPayload(f"{total} changes in a block of {base.size}")
    slots = np.empty((2, SCALE), dtype=np.uint32)
    gaps, sizes = np.empty(total, dtype=np.uint32), np.empty(total, dtype=np.uint16)
    if not _read(changes, frequencies, slots, words, gaps, sizes):
        raise DamagedPayload("the coded changes do not end where their stream ends")
    positions = np.empty(total, dtype=np.uint32)
    if not _walk(base, classes, element.exponent_shift, changes, gaps, sizes, out, positions):
        raise DamagedPayload("changes that lie beyond the end of the block")
    return positions


def _parse(view: memoryview) -> tuple[Classes, Counts, Frequencies, Words]:
    head = 16 + int.from_bytes(view[8:16], "little")
    (tables,) = unpack(view[:head], limits=[_CONTEXTS * (1 + _TABLE_BYTES)])
    count = (tables.size - _CONTEXTS) // _TABLE_BYTES
    if count < 1 or tables.size != _CONTEXTS + count * _TABLE_BYTES or (len(view) - head) % 4:
        raise DamagedPayload("tables or words of a wrong size")
    classes, changes, rows = np.split(tables, [_CONTEXTS, _CONTEXTS + 4 * count])
    if int(classes.max()) > count:
        raise DamagedPayload("an exponent without a table")
    frequencies = rows.view(np.uint16).reshape(count, _SYMBOLS)
    return classes, changes.view(np.uint32), frequencies, np.frombuffer(view[head:].tobytes(), dtype=np.uint32)


def _classes_of(base: Elements, positions: Positions, shift: int) -> tuple[Classes, Counts]:
    """A class for each exponent, and the changes of each class.

    Neighbours share a class if that costs less than a table of their own would. Exponents of which nothing changes have
    the class after the last, which has no table.
    """
    changes = np.bincount((base[positions] >> shift) & 0xFF, minlength=_CONTEXTS)
    sample = np.bincount((base[::_SAMPLING] >> shift) & 0xFF, minlength=_CONTEXTS)
    totals = np.maximum(sample * _SAMPLING, changes)
    groups: list[_Group] = []
    for exponent in np.flatnonzero(changes):
        group = _Group(int(totals[exponent]), int(changes[exponent]), [int(exponent)])
        joined = groups[-1].joined(group) if groups else None
        if joined is not None and joined.bits() < groups[-1].bits() + group.bits() + _TABLE_BITS:
            groups[-1] = joined
        else:
            groups.append(group)
    classes = np.full(_CONTEXTS, len(groups), dtype=np.uint8)
    for number, group in enumerate(groups):
        classes[group.exponents] = number
    return classes, np.array([group.changes for group in groups], dtype=np.uint32)


@dataclass(frozen=True)
class _Group:
    """Exponents with one table: how many elements they have, about, and how many of those changed."""

    elements: int
    changes: int
    exponents: list[int]

    def joined(self, other: _Group) -> _Group:
        return _Group(self.elements + other.elements, self.changes + other.changes, [*self.exponents, *other.exponents])

    def bits(self) -> float:
        """What the positions cost."""
        share = self.changes / self.elements
        if share == 1.0:
            return 0.0
        return -self.elements * (share * math.log2(share) + (1 - share) * math.log2(1 - share))


@kernel
def _collect(
    base: Elements, positions: Positions, values: Elements, classes: Classes, shift: int, changes: Counts, gaps: Gaps,
    sizes: Sizes,
) -> None:  # fmt: skip
    """Gap and size of every change, class by class; a gap is the number of elements of the class since its last one."""
    seen = np.zeros(_CONTEXTS, dtype=np.int64)
    place = np.zeros(_CONTEXTS, dtype=np.int64)
    for later in range(1, changes.size):
        place[later] = place[later - 1] + changes[later - 1]
    begin: Integer = 0
    for index in range(positions.size):
        position = np.int64(positions[index])
        for element in range(begin, position):
            seen[classes[(base[element] >> shift) & 0xFF]] += 1
        owner = np.int64(classes[(base[position] >> shift) & 0xFF])
        gaps[place[owner]] = seen[owner]
        sizes[place[owner]] = difference(base[position], values[index], _BITS, True) - np.uint64(1)
        place[owner] += 1
        seen[owner] = 0
        begin = position + 1


@kernel
def _count(gaps: Gaps, sizes: Sizes, changes: Counts, occurrences: npt.NDArray[np.int64]) -> None:
    """How often each symbol will be written."""
    index = 0
    for owner in range(changes.size):
        for _ in range(changes[owner]):
            bucket, _ = bucket_of(np.int64(gaps[index]))
            occurrences[owner, bucket] += 1
            bucket, _ = bucket_of(np.int64(sizes[index]))
            occurrences[owner, _GAP_SYMBOLS + bucket] += 1
            index += 1


@kernel
def _write(gaps: Gaps, sizes: Sizes, changes: Counts, frequencies: Frequencies, words: Words) -> Integer:
    """Backwards. Gaps and sizes have a coder state each: neither waits for the other."""
    starts = np.zeros(_SYMBOLS, dtype=np.uint16)
    gap_state, size_state = np.uint64(LOWEST), np.uint64(LOWEST)
    at: Integer = words.size
    index = gaps.size
    for owner in range(changes.size - 1, -1, -1):
        table = frequencies[owner]
        starts_of(table[:_GAP_SYMBOLS], starts[:_GAP_SYMBOLS])
        starts_of(table[_GAP_SYMBOLS:], starts[_GAP_SYMBOLS:])
        for _ in range(changes[owner]):
            index -= 1
            size, gap = np.int64(sizes[index]), np.int64(gaps[index])
            bucket, bits = bucket_of(size)
            size_state, at = put_number(size_state, size, bits, words, at)
            symbol = _GAP_SYMBOLS + np.int64(bucket)
            size_state, at = put_symbol(size_state, table[symbol], starts[symbol], words, at)
            bucket, bits = bucket_of(gap)
            gap_state, at = put_number(gap_state, gap, bits, words, at)
            gap_state, at = put_symbol(gap_state, table[bucket], starts[bucket], words, at)
    for state in (gap_state, size_state):
        at -= 2
        words[at] = state >> np.uint64(32)
        words[at + 1] = state & np.uint64(0xFFFFFFFF)
    return at


@kernel
def _read(changes: Counts, frequencies: Frequencies, slots: Slots, words: Words, gaps: Gaps, sizes: Sizes) -> bool:
    """False when a table is wrong, or when the words do not end exactly with the last change."""
    if words.size < 4:
        return False
    size_state = (np.uint64(words[0]) << np.uint64(32)) | np.uint64(words[1])
    gap_state = (np.uint64(words[2]) << np.uint64(32)) | np.uint64(words[3])
    used: Integer = 4
    index = 0
    for owner in range(changes.size):
        table = frequencies[owner]
        if not (slots_of(table[:_GAP_SYMBOLS], slots[0]) and slots_of(table[_GAP_SYMBOLS:], slots[1])):
            return False
        for _ in range(changes[owner]):
            bucket, gap_state, used = take_symbol(slots, 0, gap_state, words, used)
            gap, gap_state, used = take_number(bucket, gap_state, words, used)
            bucket, size_state, used = take_symbol(slots, 1, size_state, words, used)
            size, size_state, used = take_number(bucket, size_state, words, used)
            gaps[index] = gap
            sizes[index] = size
            index += 1
        if used > words.size:
            return False
    return bool(used == words.size and gap_state == LOWEST and size_state == LOWEST)


@kernel
def _walk(
    base: Elements, classes: Classes, shift: int, changes: Counts, gaps: Gaps, sizes: Sizes, out: Elements,
    positions: Positions,
) -> bool:  # fmt: skip
    """Count down to the next change of each class. False when some changes were never reached."""
    place = np.zeros(_CONTEXTS, dtype=np.int64)
    end = np.zeros(_CONTEXTS, dtype=np.int64)
    countdown = np.full(_CONTEXTS, _NEVER, dtype=np.int64)
    total = np.int64(0)
    # The class after the last has no table, and counts down for ever.
    for table in range(changes.size):
        place[table] = total
        total += changes[table]
        end[table] = total
        if changes[table]:
            countdown[table] = gaps[place[table]]
    count = 0
    for position in range(base.size):
        owner = np.int64(classes[(base[position] >> shift) & 0xFF])
        left = countdown[owner]
        if left:
            countdown[owner] = left - 1
            continue
        here = place[owner]
        out[position] = moved(base[position], np.int64(sizes[here]) + 1, _BITS, True)
        positions[count] = position
        count += 1
        here += 1
        place[owner] = here
        countdown[owner] = np.int64(gaps[here]) if here < end[owner] else _NEVER
    return count == positions.size
