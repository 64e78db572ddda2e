"""SeaweedFS's volumes after a loss of power: a file system may give a file its new size without what was written there,
so that index and data end in zeros. SeaweedFS then opens such a volume without a single object, those included that
were synced long before. Cut back to the last object that is there, it opens with all of them.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)
_ENTRY = struct.Struct(">QIBi")
"""Of an index: key, place in units of eight bytes (its highest byte comes last), size, negative once deleted."""
_HEADER = struct.Struct(">4xQi")
"""Of an object in the data: a cookie, its key, its size."""
_UNIT = 8
_AFTER_CONTENT = 12
"""Checksum and time."""
_SUPERBLOCK = 8


def mend_volumes(folder: Path) -> list[str]:
    """To be called while no server runs. Gives the names of those that were cut back."""
    mended = [index.stem for index in sorted(folder.glob("*.idx")) if _mend(index, index.with_suffix(".dat"))]
    if mended:
        _log.warning("volumes_cut_back", volumes=mended)
    return mended


def _mend(index: Path, data: Path) -> bool:
    if not data.exists() or data.stat().st_size < _SUPERBLOCK:
        return False
    with data.open("rb") as objects, index.open("rb") as entries:
        count = index.stat().st_size // _ENTRY.size
        while count and (end := _end_of(entries.fileno(), objects.fileno(), count - 1)) is None:
            count -= 1
    sizes = {index: count * _ENTRY.size, data: (end if count else None) or _SUPERBLOCK}
    longer = [path for path, size in sizes.items() if path.stat().st_size > size]
    for path in longer:
        os.truncate(path, sizes[path])
    return bool(longer)


def _end_of(entries: int, objects: int, number: int) -> int | None:
    """Where the object of an entry ends in the data; None where it is not there."""
    key, low, high, _ = _ENTRY.unpack(os.pread(entries, _ENTRY.size, number * _ENTRY.size))
    start = ((high << 32) | low) * _UNIT
    header = os.pread(objects, _HEADER.size, start)
    if not start or len(header) < _HEADER.size:
        return None
    found, size = _HEADER.unpack(header)
    end = start + _HEADER.size + max(0, size) + _AFTER_CONTENT
    end += _UNIT - end % _UNIT
    return end if found == key and end <= os.fstat(objects).st_size else None
