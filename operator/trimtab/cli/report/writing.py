"""Puts the report into the job's folder."""

from __future__ import annotations

from pathlib import Path

from trimtab.cli.chronicle.story import Story
from trimtab.cli.report.page import page

FILE_NAME = "report.html"


def write_report(story: Story, folder: Path) -> Path:
    """Whole or not at all: somebody may be reading the one before."""
    path = folder / FILE_NAME
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text(page(story), encoding="utf-8")
    partial.replace(path)
    return path
