"""Which tests stay together when two run side by side: those of a file, and those of a folder that share a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

_CLUSTER = Path(__file__).parent / "cluster"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(str(_shared_by(item.path))))


def _shared_by(file: Path) -> Path:
    return file.parent if file.parent.parent == _CLUSTER else file
