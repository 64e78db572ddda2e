"""Rows become padded micro-batches: each row once, within the budget, with nothing in the padding."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.trainer.batch import Row, micro_batches


def row(number: int, length: int) -> Row:
    generator = np.random.default_rng(number)
    return Row(
        token_ids=generator.integers(1, 100, length).astype(np.int32),
        logprobs=-generator.random(length).astype(np.float32),
        mask=generator.random(length) < 0.5,
        advantage=float(number),
    )


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=30), budget=st.integers(1, 120))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = [row(number, length) for number, length in enumerate(lengths)]
    seen: list[int] = []
    for micro in micro_batches(rows, max_tokens=budget):
        count, width = micro.token_ids.shape
        assert count == 1 or count * width <= budget
        for position in range(count):
            number = int(micro.advantages[position])
            source, length = rows[number], lengths[number]
            seen.append(number)
            assert micro.token_ids[position, :length].tolist() == source.token_ids.tolist()
            assert micro.logprobs[position, :length].tolist() == source.logprobs.tolist()
            assert micro.mask[position, :length].tolist() == source.mask.tolist()
            assert micro.attention_mask[position].tolist() == [1] * length + [0] * (width - length)
            assert not micro.mask[position, length:].any()
            assert not micro.token_ids[position, length:].any()
    assert sorted(seen) == list(range(len(rows)))


def test_no_rows_make_no_micro_batch() -> None:
    assert list(micro_batches([], max_tokens=100)) == []


def test_rows_of_one_length_need_no_padding() -> None:
    rows = [row(number, 10) for number in range(10)]
    micro = list(micro_batches(rows, max_tokens=40))
    assert [m.token_ids.shape for m in micro] == [torch.Size([4, 10]), torch.Size([4, 10]), torch.Size([2, 10])]
