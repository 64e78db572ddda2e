"""Runs a module by Triton's interpreter, which must be asked for before anything imports Triton: hence a process."""

from __future__ import annotations

import os
import subprocess
import sys


def run_interpreted(module: str) -> None:
    """Fails with what the module says when it fails."""
    run = subprocess.run(
        [sys.executable, "-m", module],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-3000:]
