"""Formats of other systems are fair only if a receiver could rebuild the new weights from them."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from benchmarks.weights.peers import ASTRAFLOW, FULL, GAPS, INDEXED, XOR, gap_delta, peer_bytes, xor_delta
from trimtab.weights.codec.change import Elements

SIZE = 400_000


def step_pair(*, share: float) -> tuple[Elements, Elements]:
    random = np.random.default_rng(5)
    old = random.integers(0, 1 << 16, SIZE).astype(np.uint16)
    changed = random.random(SIZE) < share
    return old, np.where(changed, old + random.choice([-1, 1], SIZE), old).astype(np.uint16)


def decompressed(payload: bytes) -> bytes:
    """All frames of the payload: the format may have one or two."""
    content = b""
    while payload:
        frame = zstandard.ZstdDecompressor().decompressobj()
        content += frame.decompress(payload)
        payload = frame.unused_data
    return content


def applied(old: Elements, content: bytes, *, gap: type[np.unsignedinteger]) -> Elements:
    count = len(content) // (np.dtype(gap).itemsize + 2)
    gaps = np.frombuffer(content, dtype=gap, count=count).astype(np.int64)
    values = np.frombuffer(content, dtype=np.uint16, offset=gaps.size * np.dtype(gap).itemsize)
    new = old.copy()
    new[np.cumsum(gaps + 1) - 1] ^= values
    return new


def test_the_xor_delta_gives_the_new_weights() -> None:
    old, new = step_pair(share=0.01)
    difference = np.frombuffer(decompressed(xor_delta(old, new)), dtype=np.uint16)
    assert np.array_equal(old ^ difference, new)


@pytest.mark.parametrize("share", [0.01, 0.3])
def test_the_gap_delta_gives_the_new_weights(share: float) -> None:
    old, new = step_pair(share=share)
    content = decompressed(gap_delta(old, new, np.flatnonzero(old != new)))
    assert np.array_equal(applied(old, content, gap=np.uint16), new)


def test_a_gap_that_does_not_fit_makes_all_gaps_wider() -> None:
    old = np.zeros(SIZE, dtype=np.uint16)
    new = old.copy()
    new[[7, 8, SIZE - 1]] = 1
    content = decompressed(gap_delta(old, new, np.flatnonzero(old != new)))
    assert np.array_equal(applied(old, content, gap=np.uint32), new)


def test_indexed_formats_cost_an_index_and_a_value_for_each_change() -> None:
    old, new = step_pair(share=0.01)
    changes = int(np.count_nonzero(old != new))
    sizes = peer_bytes(old, new)
    assert sizes[ASTRAFLOW] == 10 * changes
    assert sizes[INDEXED] == 6 * changes
    assert sizes[FULL] == 2 * SIZE


def test_a_step_without_changes_costs_next_to_nothing() -> None:
    old, _ = step_pair(share=0.0)
    sizes = peer_bytes(old, old)
    assert sizes[ASTRAFLOW] == sizes[INDEXED] == sizes[GAPS] == 0
    assert sizes[XOR] < 100
