"""Which tests stay together when two run side by side: those of a file, and those of a folder that share a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

_TESTS = Path(__file__).parent


def pytest_itemcollected(item: pytest.Item) -> None:
    item.add_marker(pytest.mark.xdist_group(str(_shared_by(item.path).relative_to(_TESTS))))


def _shared_by(file: Path) -> Path:
    return file.parent if file.parent.parent == _TESTS / "cluster" else file
