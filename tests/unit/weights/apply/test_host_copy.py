"""A copy is what it says it is, has one owner, and is not there when it cannot be trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.support.weights.copy_states import Site, content_of, held_of, prepared, weights
from trimtab.weights.apply import copy_files
from trimtab.weights.apply.copy_files import CopyInUse, DamagedCopy, InvalidUpdate, boot_id
from trimtab.weights.apply.durable import SharedFile
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.mapping import MappedWeights
from trimtab.weights.layout import InvalidLayout, StateLayout


def test_a_copy_that_was_built_is_found_again(site: Site, layout: StateLayout) -> None:
    data = weights(layout, version=3)
    site.build(layout, data, version=3).close()
    copy = site.opened()
    assert copy.layout == layout
    assert copy.held == held_of(layout, data, version=3)
    assert copy.path == site.folder / "model.safetensors"
    assert copy.path.read_bytes() == layout.prefix + data.tobytes()
    copy.verify(threads=2)


def test_the_file_is_one_that_engines_can_load(site: Site) -> None:
    layout = StateLayout.of({"a": ("F32", (3, 5)), "b": ("F16", (4,))})
    data = np.arange(layout.data_bytes, dtype=np.uint8)
    site.build(layout, data, version=0)
    loaded = load_file(site.folder / "model.safetensors")
    assert loaded["a"].shape == (3, 5)
    assert loaded["a"].tobytes() + loaded["b"].tobytes() == data.tobytes()


def test_threads_fill_a_copy_together(site: Site, layout: StateLayout) -> None:
    data = weights(layout, version=0)
    with HostCopy.build(site.folder, site.spool, layout) as builder, ThreadPoolExecutor(4) as pool:
        for _ in pool.map(
            lambda block: builder.put(block.index, data[block.start : block.end]), reversed(layout.blocks)
        ):
            pass
        copy = builder.finish(held_of(layout, data, version=0))
    np.testing.assert_array_equal(content_of(copy), data)


def test_blocks_are_read_only_and_aligned(site: Site, layout: StateLayout) -> None:
    copy = site.build(layout, weights(layout, version=0), version=0)
    assert len(layout.blocks) > 5
    for block in layout.blocks:
        view = copy.block(block.index)
        assert view.view(f"u{block.element.width}").flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            view[0] = 1


def test_a_view_outlives_its_copy_and_the_copy_says_that_it_is_closed(site: Site, layout: StateLayout) -> None:
    data = weights(layout, version=0)
    copy = site.build(layout, data, version=0)
    view = copy.block(0)
    copy.close()
    np.testing.assert_array_equal(view, data[: layout.blocks[0].end])
    with pytest.raises(ValueError, match="closed"):
        copy.block(0)
    with pytest.raises(InvalidUpdate, match="closed"):
        copy.begin(copy.held)


@pytest.mark.parametrize("shared", ["folder", "spool"])
def test_a_second_owner_is_refused_until_the_first_is_gone(
    site: Site, layout: StateLayout, tmp_path: Path, shared: str
) -> None:
    copy = site.build(layout, weights(layout, version=0), version=0)
    other = Site(site.folder, tmp_path) if shared == "folder" else Site(tmp_path, site.spool)
    with pytest.raises(CopyInUse, match="in use"):
        other.open()
    with pytest.raises(CopyInUse, match="in use"):
        HostCopy.build(other.folder, other.spool, layout)
    copy.close()
    site.opened().close()


def test_where_there_is_nothing_there_is_no_copy_and_no_lock(site: Site) -> None:
    assert site.open() is None
    assert site.open() is None


def test_verify_names_the_damaged_tensors(site: Site, layout: StateLayout) -> None:
    copy = site.build(layout, weights(layout, version=0), version=0)
    rope = next(tensor for tensor in layout.tensors if tensor.name == "rope")
    with copy.path.open("r+b") as file:
        file.seek(len(layout.prefix) + rope.start)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(DamagedCopy, match=r"version 0 of epoch 1: .*rope.* differ") as caught:
        copy.verify(threads=2)
    assert "mask" not in str(caught.value)


def _truncated(site: Site) -> None:
    model = site.folder / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])


def _without_model(site: Site) -> None:
    (site.folder / "model.safetensors").unlink()


def _other_header(site: Site) -> None:
    model = site.folder / "model.safetensors"
    model.write_bytes(model.read_bytes().replace(b'"rope"', b'"rape"'))


def _absurd_header_length(site: Site) -> None:
    model = site.folder / "model.safetensors"
    model.write_bytes(b"\xff" * 8 + model.read_bytes()[8:])


def _half_a_state(site: Site) -> None:
    state = site.folder / "copy.json"
    state.write_bytes(state.read_bytes()[:-9])


def _without_state(site: Site) -> None:
    (site.folder / "copy.json").unlink()


def _other_digest_in_state(site: Site) -> None:
    path = site.folder / "copy.json"
    state = json.loads(path.read_text())
    digests = state["held"]["digests"]
    digests[0], digests[1] = digests[1], digests[0]
    path.write_text(json.dumps(state))


def _before_the_machine_was_started_again(site: Site) -> None:
    path = site.folder / "copy.json"
    state = json.loads(path.read_text())
    assert state["boot"] == boot_id() is not None
    path.write_text(json.dumps(state | {"boot": "another"}))


@pytest.mark.parametrize(
    "damage",
    [
        _before_the_machine_was_started_again,
        _truncated,
        _without_model,
        _other_header,
        _absurd_header_length,
        _half_a_state,
        _without_state,
        _other_digest_in_state,
    ],
)
def test_what_cannot_be_used_is_removed(site: Site, layout: StateLayout, damage: Callable[[Site], None]) -> None:
    site.build(layout, weights(layout, version=0), version=0).close()
    (site.folder / "config.json").write_text("{}")
    damage(site)
    assert site.open() is None
    assert site.leftovers() == {"config.json"}


def test_where_starts_of_the_machine_cannot_be_told_apart_a_copy_is_on_the_disk(
    site: Site, layout: StateLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(copy_files, "boot_id", lambda: None)
    monkeypatch.setattr(SharedFile, "sync", lambda self: synced.append("built"))
    monkeypatch.setattr(MappedWeights, "flush", lambda self: synced.append("updated"))
    copy = site.build(layout, weights(layout, version=0), version=0)
    prepared(copy, weights(layout, version=1)).commit()
    assert (synced[0], synced[-1]) == ("built", "updated")


def test_a_build_replaces_a_copy_of_another_layout_and_its_journal(site: Site, layout: StateLayout) -> None:
    copy = site.build(layout, weights(layout, version=0), version=0)
    prepared(copy, weights(layout, version=1))
    copy.files.prepared.rename(copy.files.committed)
    copy.close()
    other = StateLayout.of({"only": ("F32", (7,))})
    site.build(other, weights(other, version=0), version=0).close()
    copy = site.opened()
    assert copy.layout == other
    copy.verify()


def test_a_build_that_is_given_up_leaves_nothing(site: Site, layout: StateLayout) -> None:
    data = weights(layout, version=0)
    with HostCopy.build(site.folder, site.spool, layout) as builder:
        builder.put(0, data[: layout.blocks[0].end])
    assert site.leftovers() == set()
    assert site.open() is None


def test_a_build_takes_every_block_once_and_no_other(site: Site, layout: StateLayout) -> None:
    data = weights(layout, version=0)
    held = held_of(layout, data, version=0)
    with HostCopy.build(site.folder, site.spool, layout) as builder:
        builder.put(0, data[: layout.blocks[0].end])
        with pytest.raises(InvalidUpdate, match="put before"):
            builder.put(0, data[: layout.blocks[0].end])
        with pytest.raises(InvalidUpdate, match="bytes, not uint8 of shape"):
            builder.put(1, data[:3])
        with pytest.raises(InvalidUpdate, match=r"the blocks \[1, .* are missing"):
            builder.finish(held)
        for block in layout.blocks[1:]:
            builder.put(block.index, data[block.start : block.end] ^ (block.index == 2))
        with pytest.raises(DamagedCopy, match=r"the blocks \[2\] are not those of version 0"):
            builder.finish(held)
    assert site.open() is None


def test_a_header_that_leaves_data_unaligned_is_refused(site: Site) -> None:
    padded = StateLayout.of({"a": ("F32", (2,))})
    with pytest.raises(InvalidLayout, match="pad it"):
        HostCopy.build(site.folder, site.spool, StateLayout.parse(padded.header + b" "))
    assert not site.folder.exists()


def test_a_model_without_tensors_is_a_copy_too(site: Site) -> None:
    layout = StateLayout.of({})
    site.build(layout, np.empty(0, np.uint8), version=4).close()
    copy = site.opened()
    with copy.begin(held_of(layout, np.empty(0, np.uint8), version=5)) as transaction:
        transaction.prepare().commit()
    assert copy.held.version == 5
