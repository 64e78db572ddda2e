from __future__ import annotations

from pathlib import Path

import pytest

from trimtab.api.generate import ROOT, generated_files, main, stale_files


def test_generated_files_are_current() -> None:
    assert stale_files(ROOT) == [], "run make crds"


@pytest.mark.slow
def test_check_says_what_to_do_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], root=tmp_path) == 1
    errors = capsys.readouterr().err
    assert all(f"{path} is stale: run make crds" in errors for path in generated_files())
    assert main([], root=tmp_path) == 0
    assert main(["--check"], root=tmp_path) == 0


@pytest.mark.slow
def test_generation_is_deterministic() -> None:
    assert generated_files() == generated_files()
