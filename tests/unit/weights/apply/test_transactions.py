"""Updates happen as a whole or not at all, and only those that fit."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.weights.copy_states import (
    Bytes,
    Site,
    content_of,
    elements_of,
    held_of,
    prepared,
    put_changes,
    weights,
)
from trimtab.weights.apply import recovery
from trimtab.weights.apply.copy_files import InvalidUpdate
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.transaction import Transaction
from trimtab.weights.layout import StateLayout


@pytest.fixture
def copy(site: Site, layout: StateLayout) -> HostCopy:
    return site.build(layout, weights(layout, version=0), version=0)


def _assert_holds(copy: HostCopy, data: Bytes, *, version: int) -> None:
    np.testing.assert_array_equal(content_of(copy), data)
    assert copy.held == held_of(copy.layout, data, version=version)
    copy.verify()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(density=st.sampled_from([0.0, 0.01, 0.3, 1.0]), whole=st.sets(st.integers(0, 9)), threads=st.integers(1, 3))
def test_any_mix_of_sparse_and_whole_blocks_gives_the_target(
    site: Site, layout: StateLayout, density: float, whole: set[int], threads: int
) -> None:
    copy = site.build(layout, weights(layout, version=0), version=0)
    new = weights(layout, version=1, density=density)
    with prepared(copy, new, whole=whole) as update:
        update.commit(threads=threads)
    _assert_holds(copy, new, version=1)
    copy.close()
    reopened = site.opened()
    _assert_holds(reopened, new, version=1)
    reopened.close()


def test_versions_follow_one_another(site: Site, copy: HostCopy) -> None:
    for version in (1, 2, 3):
        with prepared(copy, weights(copy.layout, version=version)) as update:
            update.commit()
    _assert_holds(copy, weights(copy.layout, version=3), version=3)
    assert site.leftovers() == {"model.safetensors", "copy.json"}


def test_threads_put_blocks_in_any_order(copy: HostCopy) -> None:
    new = weights(copy.layout, version=1)
    with copy.begin(held_of(copy.layout, new, version=1)) as transaction, ThreadPoolExecutor(4) as pool:
        for _ in pool.map(
            lambda block: transaction.put_whole(block.index, new[block.start : block.end]), reversed(copy.layout.blocks)
        ):
            pass
        transaction.prepare().commit()
    _assert_holds(copy, new, version=1)


def test_blocks_that_do_not_change_need_not_be_put(copy: HostCopy) -> None:
    new = content_of(copy)
    block = copy.layout.blocks[1]
    elements_of(new, block)[5] += 1
    with copy.begin(held_of(copy.layout, new, version=1)) as transaction:
        transaction.put_sparse(1, _u32(5), elements_of(new, block)[5:6])
        transaction.prepare().commit()
    _assert_holds(copy, new, version=1)


def test_nothing_changes_before_the_commit_nor_by_a_rollback(site: Site, copy: HostCopy) -> None:
    before = content_of(copy)
    update = prepared(copy, weights(copy.layout, version=1))
    _assert_holds(copy, before, version=0)
    update.rollback()
    with pytest.raises(InvalidUpdate, match="rolled back"):
        update.commit()
    _assert_holds(copy, before, version=0)
    assert site.leftovers() == {"model.safetensors", "copy.json"}
    with prepared(copy, weights(copy.layout, version=1)) as update:
        update.commit()
    with pytest.raises(InvalidUpdate, match="cannot be rolled back"):
        update.rollback()


def test_leaving_an_update_open_gives_it_up(site: Site, copy: HostCopy) -> None:
    before = content_of(copy)
    new = weights(copy.layout, version=1)
    with copy.begin(held_of(copy.layout, new, version=1)) as transaction:
        put_changes(transaction, copy.layout, before, new)
    with pytest.raises(InvalidUpdate, match="abandoned"):
        transaction.prepare()
    assert site.leftovers() == {"model.safetensors", "copy.json"}
    with prepared(copy, new):
        pass
    assert site.leftovers() == {"model.safetensors", "copy.json"}
    _assert_holds(copy, before, version=0)


def test_there_is_one_update_at_a_time(copy: HostCopy) -> None:
    target = held_of(copy.layout, weights(copy.layout, version=1), version=1)
    with copy.begin(target), pytest.raises(InvalidUpdate, match="under way"):
        copy.begin(target)
    with prepared(copy, weights(copy.layout, version=1)) as update:
        with pytest.raises(InvalidUpdate, match="under way"):
            copy.begin(target)
        update.commit()
        copy.begin(target).abandon()


def _u32(*positions: int) -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
    return np.array(positions, np.uint32)


# Block 0 of the layout is `scale`: nine elements of eight bytes.
@pytest.mark.parametrize(
    ("put", "message"),
    [
        (lambda it: it.put_sparse(0, _u32(9), np.zeros(1, np.uint64)), "9 elements, position 9"),
        (lambda it: it.put_sparse(0, _u32(3, 2), np.zeros(2, np.uint64)), "do not increase"),
        (lambda it: it.put_sparse(0, _u32(3, 3), np.zeros(2, np.uint64)), "do not increase"),
        (lambda it: it.put_sparse(0, _u32(3), np.zeros(2, np.uint64)), "values of"),
        (lambda it: it.put_sparse(0, _u32(3), np.zeros(1, np.uint32)), "takes uint32 and uint64"),
        (lambda it: it.put_sparse(0, np.zeros(1, np.int64), np.zeros(1, np.uint64)), "takes uint32"),
        (lambda it: it.put_whole(0, np.zeros(71, np.uint8)), "is 72 bytes"),
        (lambda it: it.put_whole(0, np.zeros(9, np.uint64)), "is 72 bytes"),
        (lambda it: it.put_whole(99, np.zeros(72, np.uint8)), "no block 99"),
        (lambda it: it.put_whole(-1, np.zeros(72, np.uint8)), "no block -1"),
    ],
)
def test_changes_that_do_not_fit_are_refused(copy: HostCopy, put: Callable[[Transaction], None], message: str) -> None:
    with copy.begin(copy.held) as transaction, pytest.raises(InvalidUpdate, match=message):
        put(transaction)


def test_a_block_is_put_once_and_before_preparing(copy: HostCopy) -> None:
    transaction = copy.begin(copy.held)
    transaction.put_whole(0, copy.block(0))
    with pytest.raises(InvalidUpdate, match="put before"):
        transaction.put_sparse(0, _u32(), np.zeros(0, np.uint64))
    update = transaction.prepare()
    with pytest.raises(InvalidUpdate, match="too late"):
        transaction.put_whole(1, copy.block(1))
    update.commit()


def test_a_block_that_differs_in_the_target_has_to_be_put(copy: HostCopy) -> None:
    new = weights(copy.layout, version=1)
    with (
        copy.begin(held_of(copy.layout, new, version=1)) as transaction,
        pytest.raises(InvalidUpdate, match=r"blocks \[0, 1, .* differ in the target"),
    ):
        transaction.prepare()


def test_a_target_of_another_layout_or_with_another_root_is_refused(copy: HostCopy) -> None:
    other = StateLayout.of({"a": ("F32", (7,))})
    with pytest.raises(InvalidUpdate, match="1 digests"):
        copy.begin(held_of(other, weights(other, version=0), version=1))
    swapped = (copy.held.digests[1], copy.held.digests[0], *copy.held.digests[2:])
    with pytest.raises(InvalidUpdate, match="its digests give"):
        copy.begin(type(copy.held)(epoch=1, version=1, root=copy.held.root, digests=swapped))


def test_a_put_that_failed_keeps_the_update_from_being_prepared(
    copy: HostCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with copy.begin(copy.held) as transaction:
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", _disk_is_full)
            with pytest.raises(OSError, match="full"):
                transaction.put_whole(0, copy.block(0))
        with pytest.raises(InvalidUpdate, match=r"blocks \[0\] failed"):
            transaction.prepare()


def test_a_commit_that_failed_half_way_can_be_repeated(copy: HostCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    new = weights(copy.layout, version=1)
    with prepared(copy, new) as update:
        with monkeypatch.context() as patch:
            patch.setattr(recovery, "write_state", _disk_is_full)
            with pytest.raises(OSError, match="full"):
                update.commit()
        assert not update.committed
        with pytest.raises(InvalidUpdate, match="cannot be rolled back"):
            update.rollback()
        update.commit()
    _assert_holds(copy, new, version=1)


def test_an_update_whose_copy_was_closed_touches_nothing_of_the_next_owner(site: Site, copy: HostCopy) -> None:
    late = copy.begin(copy.held)
    copy.close()
    owner = site.opened()
    current = owner.begin(owner.held)
    late.abandon()
    with pytest.raises(InvalidUpdate, match="closed"):
        late.prepare()
    current.prepare().commit()


def _disk_is_full(*_arguments: object, **_named: object) -> int:
    raise OSError("the disk is full")
