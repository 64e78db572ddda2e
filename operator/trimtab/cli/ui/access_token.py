"""The word that lets a browser in. It is kept, so that a page that was open finds the server again after a restart, and
an address that was noted goes on to work.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

import click

_NAME = "ui-token"
_FORM = re.compile(r"[A-Za-z0-9_-]{43}")


def kept_token(environment: Mapping[str, str]) -> str:
    """Of this user, made at the first call."""
    folder = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trimtab"
    path = folder / _NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        found = path.read_text(encoding="ascii", errors="replace").strip() if path.is_file() else ""
        if _FORM.fullmatch(found) and path.stat().st_mode & 0o077 == 0:
            return found
        return _made(path)
    except OSError as error:
        raise click.ClickException(
            f"{path} cannot be kept: {error.strerror}; let XDG_CACHE_HOME name a folder that can be written"
        ) from None


def _made(path: Path) -> str:
    token = secrets.token_urlsafe(32)
    partial = path.with_name(f"{_NAME}.{os.getpid()}")
    partial.touch(mode=0o600, exist_ok=False)
    partial.write_text(token, encoding="ascii")
    partial.replace(path)
    return token
