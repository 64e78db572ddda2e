"""Bit-exactness of the codec over dtypes, sizes and bit patterns that are meant to break it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.weights.codec.blocks import Codec, Mode, decode_block, encode_change, encode_whole
from trimtab.weights.codec.change import Bytes, Sparse, Whole, apply_change, find_change
from trimtab.weights.layout import ELEMENT_TYPES

# Zeros of both signs, the smallest and largest subnormals and normals, infinities, NaNs with and without payload.
EXTREMES = {
    1: [0x00, 0x80, 0x01, 0x81, 0x7F, 0xFF, 0x7C, 0x7D, 0xFE],
    2: [0x0000, 0x8000, 0x0001, 0x8001, 0x007F, 0x0080, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7FFF, 0xFFFF, 0x7C00],
    4: [0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0xFFFFFFFF],
    8: [0, 1 << 63, 1, (1 << 63) | 1, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000001, (1 << 64) - 1],
}
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@st.composite
def step_pairs(draw: st.DrawFn) -> tuple[str, Bytes, Bytes]:
    """A block before and after: random bits or few exponents, with any share of elements moved by little or by much."""
    dtype = draw(st.sampled_from(list(ELEMENT_TYPES)))
    width = ELEMENT_TYPES[dtype].width
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(1, 3000))
    if draw(st.booleans()):
        base = rng.integers(0, 2 ** (8 * width), count, dtype=np.uint64).astype(UNSIGNED[width])
    else:
        base = rng.choice(np.array(EXTREMES[width], dtype=UNSIGNED[width]), count)
    share = draw(st.sampled_from([0.0, 0.001, 0.01, 0.1, 0.24, 0.26, 0.9, 1.0]))
    hit = rng.random(count) < share
    move = draw(st.sampled_from(["neighbour", "anything", "extreme"]))
    target = base.copy()
    if move == "neighbour":
        target[hit] += rng.choice(np.array([1, 2 ** (8 * width) - 1], dtype=np.uint64), hit.sum()).astype(base.dtype)
    elif move == "anything":
        target[hit] = rng.integers(0, 2 ** (8 * width), hit.sum(), dtype=np.uint64).astype(base.dtype)
    else:
        target[hit] = rng.choice(np.array(EXTREMES[width], dtype=base.dtype), hit.sum())
    return dtype, base.view(np.uint8), target.view(np.uint8)


@given(step_pairs(), st.sampled_from(list(Codec)))
def test_every_change_comes_back_bit_for_bit(pair: tuple[str, Bytes, Bytes], codec: Codec) -> None:
    dtype, base, target = pair
    element = ELEMENT_TYPES[dtype]
    change = find_change(base, target, width=element.width)
    if change is None:
        assert np.array_equal(base, target)
        return
    encoded = encode_change(base, change, element, codec=codec)
    out = np.full_like(base, 0xAA)
    positions = decode_block(encoded.mode, base, encoded.payload, element, out)
    assert np.array_equal(out, target)
    if isinstance(change, Sparse):
        assert positions is not None
        assert np.array_equal(positions, change.positions)
    applied = base.copy()
    apply_change(change, applied, width=element.width)
    assert np.array_equal(applied, target)


@given(step_pairs())
def test_anchors_come_back_bit_for_bit(pair: tuple[str, Bytes, Bytes]) -> None:
    dtype, _, content = pair
    encoded = encode_whole(content, ELEMENT_TYPES[dtype])
    out = np.full_like(content, 0x55)
    assert decode_block(Mode.WHOLE, None, encoded.payload, ELEMENT_TYPES[dtype], out) is None
    assert np.array_equal(out, content)


@pytest.mark.parametrize("codec", [Codec.FAST, Codec.COMPACT])
def test_every_bf16_pattern_becomes_every_kind_of_other(codec: Codec) -> None:
    """All 65536 old values, each moved to neighbours, to both zeros, to infinity, to NaN, and to its negative."""
    every = np.arange(1 << 16, dtype=np.uint16)
    for target in (every + 1, every - 1, every * 0, every * 0 + 0x8000, every * 0 + 0x7F80, every ^ 0x8000, ~every):
        # Unchanged copies around it keep the block sparse.
        base = np.tile(every, 8)
        moved = base.copy()
        moved[3 * every.size : 4 * every.size] = target
        round_trip(base, moved, codec)


def round_trip(base: npt.NDArray[np.uint16], target: npt.NDArray[np.uint16], codec: Codec) -> Mode:
    element = ELEMENT_TYPES["BF16"]
    change = find_change(base.view(np.uint8), target.view(np.uint8), width=2)
    assert isinstance(change, Sparse)
    encoded = encode_change(base.view(np.uint8), change, element, codec=codec)
    out = np.zeros_like(base)
    decode_block(encoded.mode, base.view(np.uint8), encoded.payload, element, out.view(np.uint8))
    assert np.array_equal(out, target)
    return encoded.mode


@pytest.mark.parametrize("codec", [Codec.FAST, Codec.COMPACT])
@pytest.mark.parametrize(
    "positions", [[0], [(1 << 20) - 1], [0, 1, 2, 3], list(range(0, 1 << 20, 255)), [255, 510, 766]]
)
def test_gaps_of_every_length_are_exact(codec: Codec, positions: list[int]) -> None:
    base = np.zeros(1 << 20, dtype=np.uint16)
    target = base.copy()
    target[positions] = 7
    round_trip(base, target, codec)


def test_a_long_gap_needs_more_bits_than_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    base = np.zeros(1 << 24, dtype=np.uint16)
    target = base.copy()
    target[[5, 9_999_999, (1 << 24) - 1]] = [1, 2, 0x8000]
    assert round_trip(base, target, Codec.COMPACT) is Mode.COMPACT
    assert round_trip(base, target, Codec.AUTO) is Mode.FAST


def test_auto_picks_what_suits_the_block() -> None:
    rng = np.random.default_rng(1)
    element = ELEMENT_TYPES["BF16"]
    base = (rng.standard_normal(1 << 18).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)

    def mode(target: npt.NDArray[np.uint16]) -> Mode | None:
        change = find_change(base.view(np.uint8), target.view(np.uint8), width=2)
        return encode_change(base.view(np.uint8), change, element).mode if change else None

    some = rng.random(base.size) < 0.02
    assert mode(base) is None
    assert mode(base + some) is Mode.COMPACT
    assert mode(base + (rng.random(base.size) < 0.0001)) is Mode.FAST
    assert mode(base + (rng.random(base.size) < 0.6)) is Mode.DENSE
    assert mode(rng.permutation(base)) is Mode.WHOLE


def test_few_changes_are_listed_and_many_are_not() -> None:
    base = np.zeros(1000, dtype=np.uint8)
    assert isinstance(find_change(base, (np.arange(1000) < 250).astype(np.uint8), width=1), Sparse)
    assert isinstance(find_change(base, (np.arange(1000) < 251).astype(np.uint8), width=1), Whole)
