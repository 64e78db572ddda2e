"""A Chromium to look at pages with: the one that is installed, or else one that npm has, in the cache folder."""

from __future__ import annotations

import hashlib
import importlib
import io
import os
import shutil
import sys
import tarfile
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.own_environment import packages_of, python_with

_REQUIREMENTS = Path(__file__).with_name("browser_requirements.txt")
_PACKAGE = "https://registry.npmjs.org/@sparticuz/chromium/-/chromium-153.0.0.tgz"
_SHA256 = "20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0"
_FETCH_S = 600.0
_DEADLINE_MS = 180_000


@dataclass(frozen=True)
class Chromium:
    program: Path
    libraries: Path | None = None
    """Of its own, beside those of the system."""


@asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    """A browser of Playwright, with deadlines for a machine that does much else."""
    packages = str(packages_of(python_with(_REQUIREMENTS, name="browser")))
    if packages not in sys.path:
        sys.path.append(packages)
    chromium = _chromium()
    environment = dict(os.environ)
    if chromium.libraries is not None:
        environment["LD_LIBRARY_PATH"] = str(chromium.libraries)
    async with importlib.import_module("playwright.async_api").async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=str(chromium.program),
            # Of a container; what it opens is a page of ours.
            args=["--no-sandbox", "--disable-gpu", "--hide-scrollbars"],
            env=environment,
            timeout=_DEADLINE_MS,
        )
        try:
            context = await browser.new_context(locale="en-GB", viewport={"width": 1360, "height": 900})
            context.set_default_timeout(_DEADLINE_MS)
            yield await context.new_page()
        finally:
            await browser.close()


def _chromium() -> Chromium:
    if (installed := shutil.which("chromium")) is not None:
        return Chromium(Path(installed))
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "trimtab" / f"chromium-{_SHA256[:12]}"
    if not (folder / "prepared").is_file():
        _unpack(folder)
        (folder / "prepared").touch()  # last: half a browser is made anew
    return Chromium(folder / "chromium", folder / "lib")


def _unpack(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with urllib.request.urlopen(_PACKAGE, timeout=_FETCH_S) as answer:
        package = answer.read()
    if hashlib.sha256(package).hexdigest() != _SHA256:
        raise RuntimeError(f"{_PACKAGE} is not what it was")
    brotli = importlib.import_module("brotli")
    with tarfile.open(fileobj=io.BytesIO(package)) as files:

        def unpacked(name: str) -> bytes:
            member = files.extractfile(f"package/bin/{name}.br")
            assert member is not None
            return bytes(brotli.decompress(member.read()))

        program = folder / "chromium"
        program.write_bytes(unpacked("chromium"))
        program.chmod(0o755)
        with tarfile.open(fileobj=io.BytesIO(unpacked("al2023.tar"))) as libraries:
            libraries.extractall(folder, filter="data")
