"""How small a delta can be: entropies of what changed, for a coder with no context and one that has the old weights.

Both are limits for coders with one statistic for all the data. A coder that adapts block by block can be below them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.change import Elements

_SIGN = 0x8000
_EXPONENT_SHIFT = 7
_EXPONENTS = 256

Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Tally:
    """Counts over bf16 weights. `moves` maps exponent and distance to how many weights of it moved that far."""

    elements: Counts
    """By the exponent before the step."""
    moves: dict[tuple[int, int], int]

    @classmethod
    def empty(cls) -> Tally:
        return cls(np.zeros(_EXPONENTS, dtype=np.int64), {})

    @classmethod
    def of(cls, old: Elements, new: Elements) -> Tally:
        elements = np.bincount((old >> _EXPONENT_SHIFT) & 0xFF, minlength=_EXPONENTS)
        changed = np.flatnonzero(old != new)
        before = old[changed]
        distances = ordered(new[changed]) - ordered(before)
        exponents = (before >> _EXPONENT_SHIFT) & 0xFF
        pairs, counts = np.unique(np.stack([exponents.astype(np.int64), distances]), axis=1, return_counts=True)
        return cls(elements, dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True)))

    def __add__(self, other: Tally) -> Tally:
        moves = dict(self.moves)
        for move, count in other.moves.items():
            moves[move] = moves.get(move, 0) + count
        return Tally(self.elements + other.elements, moves)

    @property
    def weights(self) -> int:
        return int(self.elements.sum())

    @property
    def changes(self) -> int:
        return sum(self.moves.values())

    @property
    def sparsity(self) -> float:
        return 1 - self.changes / self.weights

    @property
    def memoryless_bytes(self) -> float:
        """Every weight changes with the same probability, by a distance that depends on nothing."""
        distances: dict[int, int] = {}
        for (_, distance), count in self.moves.items():
            distances[distance] = distances.get(distance, 0) + count
        return _bytes(self.weights, list(distances.values()))

    @property
    def context_bytes(self) -> float:
        """Probability and distance depend on the exponent of the old weight."""
        by_exponent: dict[int, list[int]] = {}
        for (exponent, _), count in self.moves.items():
            by_exponent.setdefault(exponent, []).append(count)
        return sum(_bytes(int(self.elements[exponent]), counts) for exponent, counts in by_exponent.items())


def ordered(weights: Elements) -> npt.NDArray[np.int64]:
    """Integers in the order of the values, one apart for neighbours; -0 comes right below +0."""
    numbers = weights.astype(np.int64)
    return np.where(numbers & _SIGN, _SIGN - 1 - numbers, numbers)


def _bytes(weights: int, moves: list[int]) -> float:
    """Which weights change, and how far each of them moves: the symbols are the distances and "does not change"."""
    counts = np.array([weights - sum(moves), *moves], dtype=np.float64)
    counts = counts[counts > 0]
    return float((counts * np.log2(weights / counts)).sum()) / 8
