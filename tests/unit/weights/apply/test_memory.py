"""An update needs memory for blocks, not for a second model."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.weights.copy_states import Site, elements_of, held_of
from trimtab.weights.apply.changes import sparse_changes
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.layout import StateLayout

MODEL_BYTES = 64 << 20
TENSOR_BYTES = 512 << 10
LIMIT = 0.15 * MODEL_BYTES


@pytest.fixture
def large(site: Site) -> HostCopy:
    """A block never mixes dtypes: where neighbours differ, each tensor is a block, however small."""
    tensors = {
        f"up.{start}": {
            "dtype": "BF16" if start // TENSOR_BYTES % 2 else "F16",
            "shape": [TENSOR_BYTES // 2],
            "data_offsets": [start, start + TENSOR_BYTES],
        }
        for start in range(0, MODEL_BYTES, TENSOR_BYTES)
    }
    header = json.dumps(tensors).encode()
    layout = StateLayout.parse(header + b" " * (-len(header) % 8))
    assert len(layout.blocks) == len(tensors)
    return site.build(layout, np.zeros(MODEL_BYTES, np.uint8), version=0)


@pytest.fixture
def measured() -> Iterator[None]:
    """numpy reports its arrays to tracemalloc. Pages mapped from files are not counted: they are the model itself, or
    the journal, whose pages go when memory is short.
    """
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.parametrize("density", ["one in a hundred", "all sparse", "all whole"])
def test_the_peak_stays_far_below_a_second_model(large: HostCopy, density: str, measured: None) -> None:
    layout = large.layout
    new = np.zeros(MODEL_BYTES, np.uint8)
    step = 100 if density == "one in a hundred" else 1
    for block in layout.blocks:
        elements_of(new, block)[::step] = block.index + 1
    target = held_of(layout, new, version=1)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with large.begin(target) as transaction:
        for block in layout.blocks:
            if density == "all whole":
                transaction.put_whole(block.index, new[block.start : block.end])
                continue
            positions = np.arange(0, block.size // 2, step, dtype=np.uint32)
            transaction.put_sparse(block.index, positions, elements_of(new, block)[positions])
        with transaction.prepare() as update:
            update.commit(threads=2)
            assert sum(len(change.indices) for change in sparse_changes(update)) >= MODEL_BYTES // 2 // step
    large.verify(threads=2)
    _, peak = tracemalloc.get_traced_memory()
    assert peak - before < LIMIT
