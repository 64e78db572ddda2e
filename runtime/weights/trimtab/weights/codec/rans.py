"""A range asymmetric numeral system: symbols cost their information content, to a fraction of a bit.

The state is one 64-bit number between LOWEST and 2**63; 32 bits at a time go out to a stream of words. Writing runs
backwards, from the last symbol to the first, so that reading runs forwards.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from trimtab.weights.codec.kernels import Integer, inlined, kernel

SCALE_BITS = 12
SCALE = 1 << SCALE_BITS
LOWEST = 1 << 31
_SHARE_BITS = 2
_SHARES = 1 << _SHARE_BITS
_EXPONENT_OF_SHARES = 1023 + _SHARE_BITS
_PART_BITS = 16

Frequencies = npt.NDArray[np.uint16]
Slots = npt.NDArray[np.uint32]
Words = npt.NDArray[np.uint32]
Taken = tuple[Integer, np.uint64, Integer]


@inlined
def bucket_of(number: Integer) -> tuple[Integer, Integer]:
    """Numbers fall into buckets, four to an octave: small ones are exact, large ones need `bits` more bits.

    Here and below nothing is decided by a branch: it would be mispredicted most of the time. The length of a number is
    the exponent it has as a float.
    """
    bits = max(np.int64(0), (np.float64(number).view(np.int64) >> 52) - _EXPONENT_OF_SHARES)
    return bits * _SHARES + (number >> bits), bits


@inlined
def bucket_start(bucket: Integer) -> tuple[Integer, Integer]:
    """The smallest number of a bucket, and the bits that follow it."""
    bits = max(np.int64(0), (bucket >> _SHARE_BITS) - 1)
    return (bucket - bits * _SHARES) << bits, bits


@inlined
def put_symbol(
    state: np.uint64, frequency: Integer, start: Integer, words: Words, at: Integer
) -> tuple[np.uint64, Integer]:
    many = np.uint64(frequency)
    state, at = _emptied(state, many << np.uint64(63 - SCALE_BITS), words, at)
    quotient = state // many
    return (quotient << np.uint64(SCALE_BITS)) + (state - quotient * many) + np.uint64(start), at


@inlined
def put_number(
    state: np.uint64, number: Integer, bits: Integer, words: Words, at: Integer
) -> tuple[np.uint64, Integer]:
    """The bits of a number that its bucket leaves open, the lowest first; they are taken the highest first."""
    if bits > _PART_BITS:
        state, at = _put_bits(state, number & ((1 << _PART_BITS) - 1), _PART_BITS, words, at)
        number >>= _PART_BITS
        bits -= _PART_BITS
    return _put_bits(state, number & ((1 << bits) - 1), bits, words, at)


@inlined
def _put_bits(state: np.uint64, value: Integer, bits: Integer, words: Words, at: Integer) -> tuple[np.uint64, Integer]:
    state, at = _emptied(state, np.uint64(1) << np.uint64(63 - bits), words, at)
    return (state << np.uint64(bits)) | np.uint64(value), at


@inlined
def _emptied(state: np.uint64, limit: np.uint64, words: Words, at: Integer) -> tuple[np.uint64, Integer]:
    """A word goes out if the state has reached the limit. It is written in any case, and counted only then."""
    full = np.int64(state >= limit)
    words[at - 1] = state & np.uint64(0xFFFFFFFF)
    return state >> np.uint64(32 * full), at - full


@kernel
def normalised(counts: npt.NDArray[np.int64], frequencies: Frequencies) -> None:
    """Frequencies that sum to SCALE, at least one for each symbol that occurs; nothing for a table without symbols."""
    total = np.int64(0)
    largest = 0
    for symbol in range(counts.size):
        total += counts[symbol]
        if counts[symbol] > counts[largest]:
            largest = symbol
    if total == 0:
        return
    given = np.int64(0)
    for symbol in range(counts.size):
        if counts[symbol]:
            frequencies[symbol] = max(np.int64(1), counts[symbol] * SCALE // total)
            given += frequencies[symbol]
    # What rounding left over goes to the commonest symbol, which notices it least; what is over is taken from the
    # largest ones, a unit at a time.
    if given <= SCALE:
        frequencies[largest] += SCALE - given
    while given > SCALE:
        for symbol in range(counts.size):
            if frequencies[symbol] > frequencies[largest]:
                largest = symbol
        frequencies[largest] -= 1
        given -= 1


@kernel
def starts_of(frequencies: Frequencies, starts: Frequencies) -> None:
    total = 0
    for symbol in range(frequencies.size):
        starts[symbol] = total
        total += frequencies[symbol]


@kernel
def slots_of(frequencies: Frequencies, slots: Slots) -> bool:
    """For each of the SCALE slots its symbol, the symbol's frequency less one, and how far into the symbol it is: all
    that a reader needs, in one load. False when the frequencies do not sum to SCALE.
    """
    total = np.int64(0)
    for symbol in range(frequencies.size):
        end = total + frequencies[symbol]
        if end > SCALE:
            return False
        for slot in range(total, end):
            slots[slot] = symbol | (np.int64(frequencies[symbol]) - 1) << 8 | (slot - total) << (8 + SCALE_BITS)
        total = end
    return bool(total == SCALE)


@inlined
def take_symbol(slots: Slots, kind: int, state: np.uint64, words: Words, used: Integer) -> Taken:
    slot = np.uint64(slots[kind, state & np.uint64(SCALE - 1)])
    frequency = ((slot >> np.uint64(8)) & np.uint64(SCALE - 1)) + np.uint64(1)
    state = frequency * (state >> np.uint64(SCALE_BITS)) + (slot >> np.uint64(8 + SCALE_BITS))
    state, used = _refilled(state, words, used)
    return np.int64(slot & np.uint64(0xFF)), state, used


@inlined
def take_number(bucket: Integer, state: np.uint64, words: Words, used: Integer) -> Taken:
    start, bits = bucket_start(bucket)
    number = np.int64(0)
    if bits > _PART_BITS:
        number = np.int64(state & np.uint64((1 << (bits - _PART_BITS)) - 1)) << _PART_BITS
        state, used = _refilled(state >> np.uint64(bits - _PART_BITS), words, used)
        bits = _PART_BITS
    number |= np.int64(state & np.uint64((1 << bits) - 1))
    state, used = _refilled(state >> np.uint64(bits), words, used)
    return start + number, state, used


@inlined
def _refilled(state: np.uint64, words: Words, used: Integer) -> tuple[np.uint64, Integer]:
    """Past the end nothing more is read; `used` then says so, and the reader gives up."""
    low = np.int64(state < np.uint64(LOWEST))
    word = np.uint64(words[min(used, words.size - 1)])
    return (state << np.uint64(32 * low)) | (word * np.uint64(low)), used + low
