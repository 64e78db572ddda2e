"""A place in shared memory, and a model of a few hundred elements that has several blocks: one for each dtype."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.guarded_run import memory_folder
from tests.support.weights.copy_states import TENSORS, Site
from trimtab.weights.layout import StateLayout


@pytest.fixture
def layout() -> StateLayout:
    return StateLayout.of(TENSORS)


@pytest.fixture
def site() -> Iterator[Site]:
    with memory_folder() as folder:
        yield Site(Path(folder) / "copy", Path(folder) / "spool")
