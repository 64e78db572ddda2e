"""Whether this process may read a file or folder, asked before anything is built on it: the libraries that read models
say of a file they may not open that it is not there.

It imports nothing of ours: engines ask too, and should not wait for what they do not need.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def unreadable(path: Path) -> str | None:
    """Why the file, or a file right in the folder, cannot be read, with the fix; None when all can be.

    Files are opened, because permissions alone do not tell: servers of network volumes have a mind of their own. What
    passes, such as a disk that does not answer, is raised as it is.
    """
    try:
        if path.is_dir():
            return next(filter(None, map(unreadable, sorted(filter(_is_content, path.iterdir())))), None)
        path.stat()
        # Opening anything else, such as a pipe, might wait for ever.
        if path.is_file():
            path.open("rb").close()
    except (FileNotFoundError, NotADirectoryError):
        return f"{path} does not exist"
    except PermissionError as error:
        return _refused(path, error)
    return None


def _is_content(path: Path) -> bool:
    """Whether a file in a folder counts; hidden files do not."""
    return path.is_file() and not path.name.startswith(".")


def _refused(path: Path, error: PermissionError) -> str:
    denied = _denied(path)
    is_folder = denied.is_dir()
    fix = f"chmod o+{'rx' if is_folder else 'r'} {denied}"
    return f"uid {os.geteuid()} may not read {denied} ({error.strerror}{_mode(denied)}): `{fix}` lets everybody read it"


def _denied(path: Path) -> Path:
    """The outermost folder on the way that may not be entered, or the path itself."""
    return next((folder for folder in reversed(path.absolute().parents) if not os.access(folder, os.X_OK)), path)


def _mode(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"; mode {stat.S_IMODE(status.st_mode):04o}, owner {status.st_uid}"
