"""Programs of one Go module: each is ready as soon as it is built, and what was compiled is kept for the others."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from trimtab.embedded.go_build import BuildError, GoProgram, built, is_built

pytestmark = pytest.mark.slow

_NAMES = ("one", "two")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nothing is imported, so nothing is downloaded."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "numbers_module"
    folder.mkdir()
    (folder / "go.mod").write_text("module trimtab.test/numbers\n\ngo 1.26\n")
    for name in _NAMES:
        (folder / name).mkdir()
        (folder / name / "main.go").write_text(f'package main\n\nfunc main() {{ println("{name}") }}\n')
    return folder


def _program(module: Path, name: str) -> GoProgram:
    return GoProgram(
        name=name,
        version="v1",
        package=f"trimtab.test/numbers/{name}",
        module=module,
        takes="seconds",
        siblings=tuple(other for other in _NAMES if other != name),
    )


def _work_folders(module: Path) -> list[Path]:
    return list((module.parent / "cache" / "trimtab").glob("numbers_module-v1-*/build"))


def test_what_was_compiled_is_kept_until_the_last_program_is_built(module: Path) -> None:
    one, two = (_program(module, name) for name in _NAMES)
    assert subprocess.run([built(one)], capture_output=True, text=True).stderr == "one\n"
    assert (is_built(one), is_built(two)) == (True, False)
    (kept,) = _work_folders(module)
    assert any((kept / "cache").iterdir())
    assert subprocess.run([built(two)], capture_output=True, text=True).stderr == "two\n"
    assert _work_folders(module) == []


def test_a_failed_build_leaves_nothing_behind(module: Path) -> None:
    (module / "one" / "main.go").write_text("package main\n\nfunc main() { this is no Go }\n")
    with pytest.raises(BuildError, match="go build failed"):
        built(_program(module, "one"))
    assert _work_folders(module) == []
