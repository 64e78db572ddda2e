"""Hugging Face's `datasets` in an environment of its own in the cache folder, made once: Trimtab does not need it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_REQUIREMENT = "datasets==5.2.0"
_INSTALL_S = 900.0


def datasets_packages() -> Path:
    """Where it lies, with what it needs beside what is installed here."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = _REQUIREMENT.replace("==", "-")
    folder = cache / "trimtab" / f"{name}-{sys.version_info.major}.{sys.version_info.minor}"
    if not (folder / "prepared").is_file():
        # Without its dependencies, of which ours are newer or the same: two numpys in a process are one too many.
        needed = [_REQUIREMENT, "dill", "multiprocess", "pandas", "python-dateutil", "six"]
        command = [sys.executable, "-m", "uv", "pip", "install", "--no-deps", "--target", str(folder), *needed]
        completed = subprocess.run(command, stdout=sys.stderr, timeout=_INSTALL_S)
        if completed.returncode != 0:
            raise RuntimeError(f"`uv pip install {_REQUIREMENT}` failed; it needs PyPI the first time")
        (folder / "prepared").touch()
    return folder
