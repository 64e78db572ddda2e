"""Prepares the libraries that others write agents with, in an environment of their own in the cache folder, once.

They are no part of Trimtab, and what they need could one day not be what Trimtab needs.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

_REQUIREMENTS = Path(__file__).with_name("agent_requirements.txt")
_INSTALL_S = 1800.0


def agents_python() -> Path:
    """The Python of the environment, which is made if it is not there: half a gigabyte, a minute or two."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = hashlib.sha256(_REQUIREMENTS.read_bytes()).hexdigest()[:12]
    folder = cache / "trimtab" / f"agents-{wanted}-{sys.version_info.major}.{sys.version_info.minor}"
    python = folder / "bin" / "python"
    if not (folder / "prepared").is_file():
        _uv("venv", "--clear", "--python", sys.executable, str(folder))
        _uv("pip", "install", "--python", str(python), "--compile-bytecode", "--requirement", str(_REQUIREMENTS))
        (folder / "prepared").touch()  # last: half an environment is made anew
    return python


def agents_packages() -> Path:
    """Where its packages lie, for agents that run in the worker."""
    (packages,) = agents_python().parents[1].glob("lib/python3.*/site-packages")
    return packages


def _uv(*arguments: str) -> None:
    completed = subprocess.run([sys.executable, "-m", "uv", *arguments], stdout=sys.stderr, timeout=_INSTALL_S)
    if completed.returncode != 0:
        raise RuntimeError(f"`uv {' '.join(arguments[:2])}` failed; it needs PyPI the first time")
