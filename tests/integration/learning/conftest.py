"""Starts that all algorithms share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.learning.known_optimum import KnownTask, lottery, make_model, words


@pytest.fixture(scope="session")
def word_task() -> KnownTask:
    return words(seed=1)


@pytest.fixture(scope="session")
def word_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("words")
    make_model(folder, seed=1)
    return folder


@pytest.fixture(scope="session")
def lottery_task() -> KnownTask:
    return lottery(seed=0)


@pytest.fixture(scope="session")
def opinionated_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference that is far from uniform, so that leaving it out of the optimum would be seen."""
    folder = tmp_path_factory.mktemp("lottery")
    make_model(folder, seed=0, spread=0.3)
    return folder
