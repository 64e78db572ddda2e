"""Libraries of others that tests need and Trimtab does not, in environments of their own in the cache folder, each made
once. What they need could one day not be what Trimtab needs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

_INSTALL_S = 1800.0


def python_with(requirements: Path, *, name: str) -> Path:
    """The Python of the environment, which is made if it is not there: half a gigabyte, a minute or two."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()[:12]
    folder = cache / "trimtab" / f"{name}-{wanted}-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not (folder / "prepared").is_file():
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        _uv("pip", "install", "--python", str(python), "--compile-bytecode", "--requirement", str(requirements))
        (folder / "prepared").touch()  # last: half an environment is made anew
    return python


def packages_of(python: Path) -> Path:
    """Where its packages lie, for a process that is to have them behind its own."""
    (packages,) = python.parents[1].glob("lib/python3.*/site-packages")
    return packages


def _uv(*arguments: str) -> None:
    completed = subprocess.run([sys.executable, "-m", "uv", *arguments], stdout=sys.stderr, timeout=_INSTALL_S)
    if completed.returncode != 0:
        raise RuntimeError(f"`uv {' '.join(arguments[:2])}` failed; it needs PyPI the first time")
