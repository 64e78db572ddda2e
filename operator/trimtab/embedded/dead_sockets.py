"""SeaweedFS leaves a socket file in /tmp at every start and takes no other place: the dead ones are removed here."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path


def remove_dead_sockets(folder: Path = Path("/tmp")) -> None:  # noqa: S108
    """Of every SeaweedFS that has ended, also of those that were killed. One that runs keeps its own."""
    for path in folder.glob("seaweedfs-*.sock"):
        with socket.socket(socket.AF_UNIX) as dialled:
            try:
                dialled.connect(str(path))
            except ConnectionRefusedError:
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    path.unlink()
            except OSError:
                continue  # gone already, or not ours to judge
