"""A place in shared memory, and blocks so small that a model of a few hundred elements has several."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guarded_run import memory_folder
from tests.support.weights.copy_states import TENSORS, Site
from trimtab.weights import layout as layouts
from trimtab.weights.layout import StateLayout


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layouts, "BLOCK_BYTES", 256)


@pytest.fixture
def layout(small_blocks: None) -> StateLayout:
    """Made anew for each test, because a layout keeps the blocks it was asked for first."""
    return StateLayout.of(TENSORS)


@pytest.fixture
def site() -> Iterator[Site]:
    with memory_folder() as folder:
        yield Site(Path(folder) / "copy", Path(folder) / "spool")
