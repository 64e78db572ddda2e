"""What the chart renders changes only when somebody means it to."""

from __future__ import annotations

import pytest

from tests.support.chart.golden import COMMAND, GOLDEN, golden_file, golden_text
from tests.support.chart.rendering import SETS


@pytest.mark.parametrize("name", SETS)
def test_rendered_as_reviewed(name: str) -> None:
    assert golden_text(name) == golden_file(name).read_text(encoding="utf-8"), f"if it is meant: {COMMAND}"


def test_every_golden_has_its_values() -> None:
    assert {file.stem for file in GOLDEN.glob("*.yaml")} == set(SETS)
