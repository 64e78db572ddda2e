"""What images are in a cluster, for a job of `trimtab run`: each role's processes begin with the version it has now."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# An engine is told no role: it is a rollout pod's.
_PYTHON = """#!/bin/sh
PYTHONPATH="$(cat {folder}/${{TRIMTAB_POD__ROLE:-rollout}})" exec {python} "$@"
"""


class RoleVersions:
    """By role, what is on PYTHONPATH of processes that begin from now on; at first nothing, which is this version."""

    ROLES = ("dataflow", "rollout", "trainer")

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self._folder = folder
        for role in self.ROLES:
            self.set(role, None)
        program = folder / "python"
        program.write_text(_PYTHON.format(folder=folder, python=sys.executable))
        program.chmod(0o755)
        # By which containers that say `python` are run.
        monkeypatch.setattr(sys, "executable", str(program))

    def set(self, role: str, tree: Path | None) -> None:
        (self._folder / role).write_text("" if tree is None else str(tree))
