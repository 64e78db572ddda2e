"""Where it lies: a folder for each version, which is never written again once the version is out."""

from __future__ import annotations

import tomllib
from pathlib import Path

_REPOSITORY = Path(__file__).parents[3]
FIXTURES = _REPOSITORY / "tests" / "fixtures"


def this_version() -> str:
    return str(tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]["version"])


def released() -> list[Path]:
    return sorted(folder for folder in FIXTURES.iterdir() if folder.is_dir())
