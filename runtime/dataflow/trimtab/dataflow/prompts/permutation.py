"""A shuffled order of any size, computed element by element, so that an epoch of a billion rows costs no memory."""

from __future__ import annotations

import hashlib
import struct

_ROUNDS = 8
_WORD = (1 << 64) - 1
# Below this the halves of a Feistel network are too narrow to mix; walking makes up for the larger domain.
_MIN_BITS = 6


class Permutation:
    """A bijection of 0..size-1 that the key decides, the same on every platform.

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
