"""Entropies of step pairs small enough to count by hand, and the order of bf16 numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.weights.limits import Tally, ordered
from trimtab.weights.codec.change import Elements

ONE = 0x3F80
TINY = 0x0080


def weights(*bits: int) -> Elements:
    return np.array(bits, dtype=np.uint16)


def binary_entropy(share: float) -> float:
    return -share * math.log2(share) - (1 - share) * math.log2(1 - share)


def test_neighbouring_numbers_are_one_apart_also_across_zero() -> None:
    rising = weights(0xBF80, 0x8001, 0x8000, 0x0000, 0x0001, ONE)
    distances = np.diff(ordered(rising))
    assert distances.tolist() == [0x3F7F, 1, 1, 1, 0x3F7F]


def test_order_is_that_of_the_values() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = (bits.astype(np.uint32) << 16).view(np.float32)
    finite = np.isfinite(values)
    by_order = values[finite][np.argsort(ordered(bits[finite]))]
    assert np.all(np.diff(by_order) >= 0)


def test_the_memoryless_limit_is_positions_plus_distances() -> None:
    old = np.full(1000, ONE, dtype=np.uint16)
    new = old.copy()
    new[:5] += 1
    new[5:10] -= 1
    bits = 1000 * binary_entropy(0.01) + 10 * 1.0
    assert Tally.of(old, new).memoryless_bytes == pytest.approx(bits / 8)


def test_what_the_exponent_tells_costs_nothing_in_its_context() -> None:
    old = np.array([TINY] * 10 + [ONE] * 990, dtype=np.uint16)
    new = old.copy()
    new[:10] += 1
    tally = Tally.of(old, new)
    assert tally.context_bytes == 0.0
    assert tally.memoryless_bytes == pytest.approx(1000 * binary_entropy(0.01) / 8)


def test_each_exponent_has_its_own_probability() -> None:
    old = np.array([TINY] * 100 + [ONE] * 900, dtype=np.uint16)
    new = old.copy()
    new[:50] += 1
    new[100:109] += 1
    bits = 100 * binary_entropy(0.5) + 900 * binary_entropy(0.01)
    assert Tally.of(old, new).context_bytes == pytest.approx(bits / 8)


def test_tallies_add_up_to_that_of_all_the_weights() -> None:
    random = np.random.default_rng(3)
    old = random.integers(0, 1 << 16, 4000).astype(np.uint16)
    new = np.where(random.random(4000) < 0.1, old + 1, old).astype(np.uint16)
    parts = Tally.of(old[:1500], new[:1500]) + Tally.of(old[1500:], new[1500:])
    whole = Tally.of(old, new)
    assert parts.sparsity == whole.sparsity
    assert parts.context_bytes == pytest.approx(whole.context_bytes)
    assert parts.memoryless_bytes == pytest.approx(whole.memoryless_bytes)
