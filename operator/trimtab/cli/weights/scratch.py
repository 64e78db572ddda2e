"""Room on disk for chunks that a command has to decode."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.filesize import decimal


@contextmanager
def scratch_folder(needed: int) -> Iterator[Path]:
    """Gone afterwards. Refused at once when there is no room for what will be put there."""
    with tempfile.TemporaryDirectory(prefix="trimtab-weights-") as name:
        free = shutil.disk_usage(name).free
        if free < needed:
            raise click.ClickException(
                f"{name} has room for {decimal(free)}, and {decimal(needed)} are needed; set TMPDIR to a larger disk"
            )
        yield Path(name)
