"""A baseline that is told what changed moves on as one that compares."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.support.weights.states import LAYOUT, TrainedState
from trimtab.weights.baseline import Baseline, LayoutChanged
from trimtab.weights.codec.change import Sparse, Whole, elements
from trimtab.weights.layout import StateLayout


@dataclass(frozen=True)
class Found:
    """What a source says changed."""

    changes: Mapping[int, Sparse]
    layout: StateLayout = LAYOUT

    def by_block(self) -> Mapping[int, Sparse]:
        return self.changes


@pytest.fixture
def baseline(tmp_path: Path) -> Iterator[Baseline]:
    with ThreadPoolExecutor(2) as executor:
        made = Baseline(LAYOUT, tmp_path, executor)
        made.fill(TrainedState(0))
        made.hash_all()
        yield made


def _found(before: TrainedState, after: TrainedState) -> Found:
    changes = {}
    for block in LAYOUT.blocks:
        width = block.element.width
        old, new = (elements(state.content()[block.start : block.end], width) for state in (before, after))
        positions = np.flatnonzero(old != new).astype(np.uint32)
        if positions.size:
            changes[block.index] = Sparse(positions, new[positions])
    return Found(changes)


@pytest.mark.parametrize("after", [TrainedState(0), TrainedState(1), TrainedState(0, run=1)])
def test_it_ends_where_a_comparison_ends(baseline: Baseline, after: TrainedState) -> None:
    compared = baseline.capture(after)
    told = baseline.take(_found(TrainedState(0), after))
    assert told.changes.keys() == compared.changes.keys()
    for index, change in told.changes.items():
        assert type(change) is type(compared.changes[index])
        block = LAYOUT.blocks[index]
        assert baseline.digest_after(block, change) == baseline.digest_after(block, compared.changes[index])
    baseline.advance(told, baseline.digests)
    assert b"".join(baseline.block(block).tobytes() for block in LAYOUT.blocks) == after.content().tobytes()


def test_a_block_of_which_much_changed_is_taken_whole(baseline: Baseline) -> None:
    told = baseline.take(_found(TrainedState(0), TrainedState(0, run=1)))
    assert any(isinstance(change, Whole) for change in told.changes.values())


def test_another_layout_is_refused(baseline: Baseline) -> None:
    with pytest.raises(LayoutChanged):
        baseline.take(Found({}, layout=StateLayout.of({"a": ("BF16", (3,))})))
