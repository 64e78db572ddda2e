"""Rows become packs: each row once, within the budget, nothing between them, trained tokens found where they are."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.trainer.batch import Row, micro_batches, pack, sole_row

CPU = torch.device("cpu")


def row(number: int, length: int) -> Row:
    generator = np.random.default_rng(number)
    mask = generator.random(length) < 0.5
    return Row(
        key=number,
        episode=sole_row(number, mask),
        token_ids=generator.integers(1, 100, length).astype(np.int32),
        logprobs=-generator.random(length).astype(np.float32),
        mask=mask,
        versions=generator.integers(0, 9, length),
        advantages=generator.random(length).astype(np.float32),
    )


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 40), max_size=30), budget=st.integers(1, 120))
def test_every_row_once_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = [row(number, length) for number, length in enumerate(lengths)]
    packs = micro_batches(rows, max_tokens=budget)
    assert sorted(row.key for pack in packs for row in pack) == list(range(len(rows)))
    for packed in packs:
        assert len(packed) == 1 or sum(len(row.token_ids) for row in packed) <= budget
    assert packs == micro_batches(rows[::-1], max_tokens=budget)


def test_packs_are_few_and_about_equally_full() -> None:
    rows = [row(number, 1 + number % 50) for number in range(400)]
    packs = micro_batches(rows, max_tokens=512)
    sizes = [sum(len(row.token_ids) for row in packed) for packed in packs]
    assert len(packs) <= -(-sum(sizes) // 512) + 1
    assert min(sizes[:-1]) > 0.9 * max(sizes)


def test_no_rows_make_no_pack() -> None:
    assert micro_batches([], max_tokens=100) == []


@settings(max_examples=60, deadline=None)
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=12))
def test_a_pack_holds_its_sequences_side_by_side(lengths: list[int]) -> None:
    rows = [row(number, length) for number, length in enumerate(lengths)]
    packed = pack(rows, device=CPU)
    ordered = sorted(rows, key=lambda row: (-len(row.token_ids), row.key))
    assert packed.lengths == tuple(len(row.token_ids) for row in ordered)
    assert packed.token_ids.tolist() == [token for row in ordered for token in row.token_ids.tolist()]
    assert packed.positions.tolist() == [place for row in ordered for place in range(len(row.token_ids))]
    wanted = [(n, r, place) for n, r in enumerate(ordered) for place in np.flatnonzero(r.mask) if place > 0]
    assert packed.chosen.tolist() == [r.token_ids[place] for _, r, place in wanted]
    assert packed.sampled_logprobs.tolist() == [r.logprobs[place] for _, r, place in wanted]
    assert packed.versions.tolist() == [r.versions[place] for _, r, place in wanted]
    assert packed.advantages.tolist() == [r.advantages[place] for _, r, place in wanted]
    assert packed.sequences.tolist() == [n for n, _, _ in wanted]
    assert packed.answer_lengths.tolist() == [r.episode.trained_tokens for r in ordered]
    assert packed.episodes == tuple(r.episode for r in ordered)
    # A predictor is the place before the token it predicts.
    assert packed.token_ids[packed.predictors + 1].tolist() == packed.chosen.tolist()
