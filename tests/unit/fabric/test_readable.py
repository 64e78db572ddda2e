"""Whoever may not read a file is told which one, who he is, and what to do; by a process that is not root's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.fabric.readable import unreadable

NOBODY = 65532
"""As whom pods run."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Which others may reach."""
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(0o755)
    place = tmp_path / "model"
    place.mkdir(mode=0o755)
    for name in ("config.json", "model.safetensors", ".notes"):
        (place / name).write_text("{}")
        (place / name).chmod(0o644)
    return place


def asked_by_nobody(path: Path) -> str:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    # Before it becomes somebody who may not read this project.
    code = (
        "import os, sys; from pathlib import Path; from trimtab.fabric.readable import unreadable; "
        f"os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY}); print(unreadable(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_what_can_be_read_is_fine(model: Path) -> None:
    assert unreadable(model) is None
    assert asked_by_nobody(model) == "None"


def test_weights_of_somebody_else_are_named_with_who_tried(model: Path) -> None:
    weights = model / "model.safetensors"
    weights.chmod(0o600)
    said = asked_by_nobody(model)
    for part in (f"uid {NOBODY} may not read {weights} ", "mode 0600, owner 0", f"chmod o+r {weights}"):
        assert part in said, part


def test_a_folder_that_may_not_be_entered_is_named(model: Path) -> None:
    model.chmod(0o700)
    for asked in (model, model / "config.json"):
        assert f"chmod o+rx {model}`" in asked_by_nobody(asked)


def test_hidden_files_are_nobodys_business(model: Path) -> None:
    (model / ".notes").chmod(0o600)
    assert asked_by_nobody(model) == "None"


def test_what_is_not_there_and_what_cannot_be_opened(tmp_path: Path) -> None:
    assert unreadable(tmp_path / "gone") == f"{tmp_path / 'gone'} does not exist"
    (tmp_path / "file").touch()
    assert unreadable(tmp_path / "file" / "below") == f"{tmp_path / 'file' / 'below'} does not exist"
    os.mkfifo(tmp_path / "pipe")
    assert unreadable(tmp_path / "pipe") is None
