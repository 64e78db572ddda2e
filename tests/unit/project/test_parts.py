"""Every test belongs to a part of the product, so that `make test-PART` of all parts leaves none out."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.tiers import PARTS, part_of

_ROOT = Path(__file__).parents[3]


def test_every_test_belongs_to_a_part() -> None:
    files = sorted((_ROOT / "tests").rglob("test_*.py"))
    assert [str(file) for file in files if part_of(file) is None] == []
    assert {part_of(file) for file in files} == PARTS.keys()


def test_make_knows_every_part() -> None:
    (listed,) = re.findall(r"^PARTS := (.*)$", (_ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(listed.split()) == PARTS.keys()
