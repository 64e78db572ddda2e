"""The order of prompts as a pure function of the seed and a position, so that a restart needs only the position."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trimtab.dataflow.mixing import MixingSchedule
from trimtab.dataflow.prompts.prompt import BLOCK_ROWS, Prompt, PromptRows, PromptSourceError

_ROUNDS = 8
_WORD = (1 << 64) - 1
# Below this the halves of a Feistel network are too narrow to mix; walking makes up for the larger domain.
_MIN_BITS = 6


@dataclass(frozen=True, kw_only=True)
class MixedSource:
    """One of the sources of a job. `kept` are the rows in play, None for all; `skipped` counts the others."""

    name: str
    weight: float
    rows: PromptRows
    kept: NDArray[np.int64] | None = None
    skipped: int = 0

    @property
    def length(self) -> int | None:
        """Rows in play; None for no end."""
        return self.rows.length if self.kept is None else len(self.kept)


class PromptOrder:
    """Prompt number n of the run, for any n: sources in turn by their weights, each epoch after epoch, each epoch
    shuffled by the seed, the source's name and its number."""

    def __init__(self, sources: Sequence[MixedSource], *, seed: int, shuffle: bool, epochs: int | None = None) -> None:
        self._sources = sources
        self._seed = seed
        self._shuffle = shuffle
        self._schedule = MixingSchedule({source.name: source.weight for source in sources}, seed=seed)
        self._shuffled: dict[str, tuple[int, Permutation]] = {}

        self.total = None if epochs is None else self._total(epochs)
        """How many there are in all, until each source with an end has been gone through `epochs` times; None for no
        end."""
        self.skipped = sum(source.skipped for source in sources)
        """Rows that were too long."""

    def at(self, position: int) -> Prompt:
        number, count = self._schedule.at(position)
        source = self._sources[number]
        row = count
        if source.length is not None:
            epoch, row = divmod(count, source.length)
            if self._shuffle:
                row = self._permutation(source.name, source.length, epoch).at(row)
        if source.kept is not None:
            row = int(source.kept[row])
        return source.rows.read(row, row + 1)[0]

    def every(self) -> Iterator[tuple[str, Mapping[str, Any]]] | None:
        """Ids and contents of all prompts in play, source by source, read as they are asked for; None when one of the
        sources has no end."""
        lengths = [source.length for source in self._sources]
        return None if None in lengths else self._all_rows()

    def _all_rows(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for source in self._sources:
            rows = range(source.rows.length or 0) if source.kept is None else source.kept.tolist()
            for start in range(0, len(rows), BLOCK_ROWS):
                block = rows[start : start + BLOCK_ROWS]
                # Mostly all rows of the block are kept: one read is quicker than many.
                whole = source.rows.read(block[0], block[-1] + 1) if len(block) == block[-1] + 1 - block[0] else None
                prompts = whole or [source.rows.read(row, row + 1)[0] for row in block]
                yield from ((prompt.prompt_id, prompt.content) for prompt in prompts)

    def _permutation(self, name: str, length: int, epoch: int) -> Permutation:
        # Positions mostly go up, so the epoch is mostly the one before.
        if name not in self._shuffled or self._shuffled[name][0] != epoch:
            self._shuffled[name] = epoch, Permutation(length, key=f"{self._seed}/{name}/{epoch}")
        return self._shuffled[name][1]

    def _total(self, epochs: int) -> int:
        ends = [
            self._schedule.reaching(number, epochs * source.length)
            for number, source in enumerate(self._sources)
            if source.length is not None
        ]
        if not ends:
            raise PromptSourceError("data.epochs: no source has an end, so no epoch has; set maxSteps instead")
        return max(ends)


class Permutation:
    """A bijection of 0..size-1 that the key decides, the same on every platform. It is computed element by element, so
    that an epoch of a billion rows costs no memory.

    A Feistel network permutes the next power of two, whatever its round function is. Where it leads outside of the
    size it is applied again until it does not, which stays a bijection and takes less than two steps on average, or 64
    with the smallest sizes.
    """

    def __init__(self, size: int, *, key: str) -> None:
        self._size = size
        bits = max(_MIN_BITS, (size - 1).bit_length())
        self._left_bits, self._right_bits = bits // 2, bits - bits // 2
        digest = hashlib.blake2b(key.encode(), digest_size=8 * _ROUNDS).digest()
        self._keys = struct.unpack(f"<{_ROUNDS}Q", digest)

    def at(self, position: int) -> int:
        if not 0 <= position < self._size:
            raise IndexError(f"{position} is not below {self._size}")
        while True:
            position = self._network(position)
            if position < self._size:
                return position

    def _network(self, value: int) -> int:
        left, right = value >> self._right_bits, value & ((1 << self._right_bits) - 1)
        bits, other_bits = self._left_bits, self._right_bits
        for key in self._keys:
            left, right = right, left ^ (_mixed(right ^ key) >> (64 - bits))
            bits, other_bits = other_bits, bits
        # An even number of rounds: the halves have their widths back.
        return left << self._right_bits | right


def _mixed(word: int) -> int:
    """The finalizer of SplitMix64: every bit of the word moves every bit of the result."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)
