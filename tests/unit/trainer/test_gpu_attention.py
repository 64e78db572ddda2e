"""Where long and short sequences lie in a pack, and that what is kept of them for the backward pass has room."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.trainer.network.gpu_attention import _LONG, _long_ones, _room_for_normalizers, _short_ones, rounded_up

HEADS = 2


def test_lengths_are_rounded_to_few_and_by_little() -> None:
    rounded = [rounded_up(length) for length in range(_LONG, 16_385)]
    assert len(set(rounded)) == 49
    assert all(length <= up <= length * 17 / 16 for length, up in enumerate(rounded, start=_LONG))
    assert all(rounded_up(up) == up for up in rounded)


@settings(max_examples=50, deadline=None)
@given(lengths=st.lists(st.one_of(st.integers(1, 64), st.integers(_LONG - 3, 9_000)), min_size=1, max_size=8))
def test_every_token_is_in_one_sequence_and_every_sequence_has_room(lengths: list[int]) -> None:
    sequences = sorted(lengths, reverse=True)
    spans = list(_long_ones(sequences, heads=HEADS))
    start, short = _short_ones(sequences)
    assert [span.length for span in spans] + list(short) == sequences
    ends = [span.end for span in spans]
    assert [span.start for span in spans] + [start] == [0, *ends]
    used = spans[-1].last_normalizer if spans else 0
    query = torch.empty(sum(sequences), HEADS, 1, device="meta")
    assert used + HEADS * sum(short) <= _room_for_normalizers(query)


def test_a_window_past_the_end_is_filled_with_zeros() -> None:
    (span,) = _long_ones([2_049], heads=1)
    states = torch.ones(2_049, 1, 1)
    window = span.window(states)
    assert window.shape == (1, 1, rounded_up(2_049), 1)
    assert window.sum() == 2_049
    assert torch.equal(span.inside(window), states)
