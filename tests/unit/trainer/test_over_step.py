"""What is decided over a step is decided by episodes: each has one vote, however long, and in however many rows."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
import torch

from trimtab.trainer.batch import Row, RowEpisode, pack
from trimtab.trainer.over_step import Share, dealt, normalized_advantages

CPU = torch.device("cpu")
KEY = -4_237_830_969_258_416_570
"""Of episode 3 of group t1.solver. Ranks are different processes, and one may be started again elsewhere."""


def row(key: int, *, index: int, tokens: int, advantage: float, rows: int = 1, of: int | None = None) -> Row:
    """`of` are the trained tokens of the whole episode."""
    mask = np.arange(1 + tokens) > 0
    return Row(
        key=key,
        episode=RowEpisode(group="g", index=index, rows=rows, trained_tokens=of or tokens),
        token_ids=np.zeros(1 + tokens, dtype=np.int32),
        logprobs=np.zeros(1 + tokens, dtype=np.float32),
        mask=mask,
        versions=np.zeros(1 + tokens, dtype=np.int64),
        advantages=np.full(1 + tokens, advantage, dtype=np.float32),
    )


def share(*rows: Row) -> Share:
    return Share(packs=(pack(rows, device=CPU),), episodes=float(len(rows)), cut=False)


def test_advantages_are_normalised_over_episodes_and_not_over_tokens_or_rows() -> None:
    """Two rows of the last one, and portions apart."""
    values = [3.0, -1.0, 0.5]
    first = share(row(1, index=0, tokens=9, advantage=3.0), row(2, index=1, tokens=1, advantage=-1.0))
    second = share(
        row(3, index=2, tokens=4, advantage=0.5, rows=2, of=5), row(4, index=2, tokens=1, advantage=0.5, rows=2, of=5)
    )
    ((one, other),) = normalized_advantages([[first, second]])
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    expected = [(value - mean) / deviation for value in values]
    assert one.packs[0].advantages.tolist() == pytest.approx([expected[0]] * 9 + [expected[1]], abs=1e-5)
    assert other.packs[0].advantages.tolist() == pytest.approx([expected[2]] * 5, abs=1e-5)


def test_equal_advantages_become_zeros() -> None:
    equal = share(row(1, index=0, tokens=2, advantage=0.25), row(2, index=1, tokens=7, advantage=0.25))
    ((normalized,),) = normalized_advantages([[equal]])
    assert normalized.packs[0].advantages.abs().max().item() < 1e-5


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_episodes_are_dealt_whole_in_equal_parts_whatever_their_rows(count: int) -> None:
    rows = [
        row(10 * index + part, index=index, tokens=1, advantage=0.0, rows=1 + index % 3)
        for index in range(30)
        for part in range(1 + index % 3)
    ]
    parts = dealt(rows, count)
    assert sorted(each.key for part in parts for each in part) == [each.key for each in rows]
    episodes = [{each.episode.index for each in part} for part in parts]
    assert [len(part) for part in episodes] == [30 // count] * count
    assert len(set.union(*episodes)) == 30
    # In one row each they are dealt the same.
    whole = dealt([each for each in rows if each.key % 10 == 0], count)
    assert [{each.episode.index for each in part} for part in whole] == episodes


def test_the_key_of_an_episode_is_its_own_and_stays_the_same() -> None:
    keys = {RowEpisode(group=f"g{n}", index=m, rows=1, trained_tokens=1).key for n in range(50) for m in range(50)}
    assert len(keys) == 2500
    assert RowEpisode(group="t1.solver", index=3, rows=2, trained_tokens=9).key == KEY
