"""`python -m tests.support.released.write` writes what this version leaves behind, once, when it is released."""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from tests.support.released import books, frames, objects, trained
from tests.support.released.folders import FIXTURES, this_version
from trimtab.embedded.nats_server import EmbeddedNats


def main() -> None:
    target = FIXTURES / this_version()
    if target.exists():
        sys.exit(f"{target} is there: what a released version has written is never written again")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "made"
        folder.mkdir()
        frames.write(folder)
        with EmbeddedNats(Path(scratch) / "nats") as nats:
            asyncio.run(books.write(folder, nats.settings))
        objects.write(folder, Path(scratch))
        trained.write(folder)
        shutil.rmtree(folder / "job" / ".trimtab")
        shutil.copytree(folder, target)


if __name__ == "__main__":
    main()
