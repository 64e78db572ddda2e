"""A journal is applied when it is whole and meant for this copy, and otherwise never."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.weights.copy_states import Site, content_of, held_of, prepared, weights
from trimtab.weights.apply.copy_files import DamagedJournal
from trimtab.weights.apply.host_copy import HostCopy
from trimtab.weights.apply.journal import Journal
from trimtab.weights.layout import StateLayout


@pytest.fixture
def copy(site: Site, layout: StateLayout) -> HostCopy:
    return site.build(layout, weights(layout, version=0), version=0)


@pytest.fixture
def journal(copy: HostCopy) -> Path:
    prepared(copy, weights(copy.layout, version=1), whole=(1,)).close()
    return copy.files.prepared


def _says(journal: Journal) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = [(journal.header,)]
    for record in journal.records:
        positions = journal.positions(record)
        found.append((record.block, None if positions is None else positions.tolist(), journal.values(record).tolist()))
    return found


def test_no_damaged_byte_goes_unnoticed(journal: Path, layout: StateLayout, tmp_path: Path) -> None:
    original = journal.read_bytes()
    expected = _says(Journal.open(journal, layout))
    damaged, unnoticed = tmp_path / "damaged", 0
    for place in range(len(original)):
        damaged.write_bytes(original[:place] + bytes([original[place] ^ 0x10]) + original[place + 1 :])
        try:
            assert _says(Journal.open(damaged, layout)) == expected
            unnoticed += 1  # a byte between two arrays
        except DamagedJournal:
            pass
    assert unnoticed < 8 * (2 * len(layout.blocks) + 1)


def test_no_truncation_goes_unnoticed(journal: Path, layout: StateLayout, tmp_path: Path) -> None:
    original = journal.read_bytes()
    cut = tmp_path / "cut"
    for length in range(len(original)):
        cut.write_bytes(original[:length])
        with pytest.raises(DamagedJournal, match="cannot be used"):
            Journal.open(cut, layout)


def test_a_journal_of_another_layout_is_refused(journal: Path) -> None:
    with pytest.raises(DamagedJournal, match="another layout"):
        Journal.open(journal, StateLayout.of({"a": ("F32", (7,))}))


@pytest.mark.parametrize("name", ["writing", "prepared"])
def test_a_journal_before_its_commit_point_is_dropped_on_open(
    site: Site, copy: HostCopy, journal: Path, name: str
) -> None:
    journal.rename(getattr(copy.files, name))
    before = content_of(copy)
    copy.close()
    copy = site.opened()
    assert copy.held.version == 0
    np.testing.assert_array_equal(content_of(copy), before)
    assert site.leftovers() == {"model.safetensors", "copy.json"}


def test_a_committed_journal_is_finished_on_open(site: Site, copy: HostCopy, journal: Path) -> None:
    journal.rename(copy.files.committed)
    copy.close()
    copy = site.opened()
    new = weights(copy.layout, version=1)
    assert copy.held == held_of(copy.layout, new, version=1)
    np.testing.assert_array_equal(content_of(copy), new)
    assert site.leftovers() == {"model.safetensors", "copy.json"}


def test_a_damaged_journal_past_its_commit_point_takes_the_copy_with_it(
    site: Site, copy: HostCopy, journal: Path
) -> None:
    copy.files.committed.write_bytes(journal.read_bytes()[:-1])
    copy.close()
    assert site.open() is None
    assert site.leftovers() == set()


def test_a_committed_journal_of_another_version_takes_the_copy_with_it(
    site: Site, copy: HostCopy, journal: Path
) -> None:
    stale = journal.read_bytes()
    journal.unlink()
    for version in (1, 2):
        prepared(copy, weights(copy.layout, version=version)).commit()
    copy.files.committed.write_bytes(stale)
    copy.close()
    assert site.open() is None
    assert site.leftovers() == set()


def test_a_journal_whose_target_is_held_already_is_only_removed(site: Site, copy: HostCopy, journal: Path) -> None:
    done = journal.read_bytes()
    journal.unlink()
    new = weights(copy.layout, version=1)
    prepared(copy, new).commit()
    copy.files.committed.write_bytes(done)
    copy.close()
    copy = site.opened()
    assert copy.held.version == 1
    np.testing.assert_array_equal(content_of(copy), new)
    assert site.leftovers() == {"model.safetensors", "copy.json"}
