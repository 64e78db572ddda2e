"""Sizes and durations as people type them, for click's `type=`."""

from __future__ import annotations

import re

import click

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE | re.ASCII)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def size(text: str) -> int:
    """Bytes: 50MB, 2GB, 512KiB or a plain number."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a size; write it like 500000, 50MB, 2GB or 512KiB")
    power = _POWERS[found[2].lower()] if found[2] else 0
    count = int(float(found[1]) * (1024 if found[3] else 1000) ** power)
    if count < 1:
        raise click.BadParameter(f"{text!r} is less than a byte")
    return count


def duration(text: str) -> float:
    """Seconds: 30s, 10m, 1h or 2d."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise click.BadParameter(f"{text!r} is not a duration; write it like 30s, 10m, 1h or 2d")
    return float(found[1]) * _SECONDS[found[2]]


def duration_text(seconds: float) -> str:
    """In the largest unit that it has at least two of: 90s, 10m, 36h."""
    for unit in ("d", "h", "m"):
        if seconds >= 2 * _SECONDS[unit]:
            return f"{seconds / _SECONDS[unit]:.0f}{unit}"
    return f"{seconds:.0f}s"
