"""The folder of one episode's agent, in which it may write what it likes."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path


@asynccontextmanager
async def agent_folder() -> AsyncIterator[Path]:
    folder = _made()
    try:
        yield folder
    finally:
        # An agent can write more than is removed in a moment.
        await asyncio.shield(asyncio.to_thread(_remove, folder))


def _made() -> Path:
    """By its real name: links are judged by whether they lead out of it."""
    return Path(tempfile.mkdtemp(prefix="agent-")).resolve()


async def make_harmless(folder: Path) -> None:
    """For whoever reads in it next and has the worker's rights: no link leads out of it, and no pipe is waited for.

    Only when the agent and all that it started are dead.
    """
    await asyncio.to_thread(_make_harmless, folder)


def _make_harmless(folder: Path) -> None:
    folder.chmod(stat.S_IRWXU)
    for path, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            entry = Path(path, name)
            mode = entry.lstat().st_mode
            if stat.S_ISLNK(mode):
                # A chain of links is judged by its end, and one that leads in a circle by nothing.
                if not Path(os.path.realpath(entry)).is_relative_to(folder):
                    entry.unlink()
            elif stat.S_ISDIR(mode):
                entry.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)
            elif not stat.S_ISREG(mode):
                entry.unlink()


def _remove(folder: Path) -> None:
    # What is in a folder that may not be read or written is not removed either.
    folder.chmod(stat.S_IRWXU)
    for path, folders, _ in os.walk(folder):
        for name in folders:
            inner = Path(path, name)
            if not inner.is_symlink():
                inner.chmod(stat.S_IRWXU)
    shutil.rmtree(folder, ignore_errors=True)
