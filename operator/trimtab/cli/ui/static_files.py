"""What the page is made of. All of it comes with Trimtab, so that it works without a network."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
INDEX = "index.html"
_TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, kw_only=True)
class StaticFile:
    content: bytes
    kind: str
    tag: str
    """Another one for other content."""


def static_files() -> dict[str, StaticFile]:
    """By their paths below the folder; licences and lists stay where they are."""
    return {
        path.relative_to(FOLDER).as_posix(): _read(path, _TYPES[path.suffix])
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in _TYPES
    }


def _read(path: Path, kind: str) -> StaticFile:
    content = path.read_bytes()
    return StaticFile(content=content, kind=kind, tag=hashlib.sha256(content).hexdigest()[:16])
