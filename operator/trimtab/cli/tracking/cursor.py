"""How far a tracker has been told the history, in a file beside it: what was away goes on from there."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from trimtab.cli.chronicle.spending import NOTHING, Spending


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    offset: int = 0
    """Of the first byte of the history that the tracker has not been told."""
    newest: int = 0
    """The newest step before it."""
    run_id: str = ""
    spending: Spending = NOTHING
    """Up to it."""


def read_cursor(file: Path) -> Cursor:
    """The beginning where there is none, or none that can be read: then the tracker is told all of it once more."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=Cursor)
    except (OSError, msgspec.DecodeError):
        return Cursor()


def write_cursor(file: Path, cursor: Cursor) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(cursor))
    fresh.replace(file)
