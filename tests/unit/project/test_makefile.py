"""`make test` runs every folder of tests, also one that somebody adds."""

from __future__ import annotations

import subprocess
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[3]


def test_every_folder_of_tests_is_run_once() -> None:
    printed = subprocess.run(
        ["make", "--dry-run", "test"], cwd=_ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout
    run = [word for line in printed.splitlines() if "/pytest " in line for word in line.split() if "tests/" in word]
    folders = [path for path in (_ROOT / "tests").glob("*") if path.is_dir() and path.name != "integration"]
    folders += (_ROOT / "tests/integration").glob("*")
    expected = {str(path.relative_to(_ROOT)) for path in folders if path.is_dir() and any(path.rglob("test_*.py"))}
    assert sorted(run) == sorted(expected)
