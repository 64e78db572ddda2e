"""Engines that take only what changed end up with the same weights as those that load the file."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.weights.copy_states import Bytes, Site, content_of, elements_of, held_of, prepared, weights
from trimtab.weights.apply.changes import SparseChange, sparse_changes
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.transaction import PreparedUpdate
from trimtab.weights.layout import ELEMENT_TYPES, StateLayout


@pytest.fixture
def copy(site: Site, layout: StateLayout) -> HostCopy:
    return site.build(layout, weights(layout, version=0), version=0)


@pytest.fixture
def spanning(site: Site) -> HostCopy:
    """A copy with a tensor too large for one block, which shares its first with a small one."""
    layout = StateLayout.of({"norm": ("BF16", (8,)), "up": ("BF16", (17 << 20,))})
    return site.build(layout, weights(layout, version=0), version=0)


def _engine(layout: StateLayout, data: Bytes) -> dict[str, np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]]:
    """Tensors of its own, flattened."""
    return {
        tensor.name: data[tensor.start : tensor.end].view(f"u{ELEMENT_TYPES[tensor.dtype].width}").copy()
        for tensor in layout.tensors
        if tensor.end > tensor.start
    }


@pytest.mark.parametrize("moment", ["before the commit", "after the commit", "after the next commit"])
def test_sparse_changes_bring_an_engine_to_the_target(copy: HostCopy, moment: str) -> None:
    layout, old, new = copy.layout, content_of(copy), weights(copy.layout, version=1)
    engine = _engine(layout, old)
    update = prepared(copy, new, whole=(2, 5))
    if moment != "before the commit":
        update.commit()
    if moment == "after the next commit":
        prepared(copy, weights(layout, version=2)).commit()
    for change in sparse_changes(update):
        assert change.indices.dtype == np.int64
        engine[change.tensor.name][change.indices] = change.values
    for name, expected in _engine(layout, new).items():
        np.testing.assert_array_equal(engine[name], expected, err_msg=name)
    del change
    update.close()
    with pytest.raises(ValueError, match="closed"):
        next(sparse_changes(update))


def _update_of(copy: HostCopy, *names: str, element: int) -> PreparedUpdate:
    """Changes one element of each of the named tensors."""
    new = content_of(copy)
    for tensor in copy.layout.tensors:
        if tensor.name in names:
            new[tensor.start : tensor.end].view(f"u{ELEMENT_TYPES[tensor.dtype].width}")[element] += 1
    return prepared(copy, new)


def test_a_block_of_several_tensors_is_split_at_their_borders(copy: HostCopy) -> None:
    blocks = copy.layout.blocks
    norms = [tensor for tensor in copy.layout.tensors if tensor.name.startswith("norm")]
    assert any(block.start <= norms[0].start and norms[1].end <= block.end for block in blocks)
    update = _update_of(copy, "norm.1", "norm.2", element=-1)
    found = {change.tensor.name: change.indices.tolist() for change in sparse_changes(update)}
    assert found == {"norm.1": [7], "norm.2": [19]}


def test_a_tensor_that_spans_blocks_comes_in_parts(spanning: HostCopy) -> None:
    new = content_of(spanning)
    up = next(tensor for tensor in spanning.layout.tensors if tensor.name == "up")
    new[up.start : up.end].view(np.uint16)[:] += 1
    parts: list[SparseChange] = list(sparse_changes(prepared(spanning, new)))
    assert {part.tensor.name for part in parts} == {"up"}
    assert len(parts) > 2
    np.testing.assert_array_equal(np.concatenate([part.indices for part in parts]), np.arange(17 << 20))


def test_a_whole_block_yields_all_its_elements(copy: HostCopy) -> None:
    block = copy.layout.blocks[0]
    with copy.begin(held_of(copy.layout, content_of(copy), version=1)) as transaction:
        transaction.put_whole(0, copy.block(0))
        (change,) = sparse_changes(transaction.prepare())
    assert change.indices.tolist() == list(range(9))
    np.testing.assert_array_equal(change.values, elements_of(content_of(copy), block))
