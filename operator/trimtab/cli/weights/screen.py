"""What commands on weights show and how people type amounts: bars on the error stream while they work, tables and JSON
on the output, sizes and durations for click's `type=`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
import msgspec
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from trimtab.cli.printable import printable
from trimtab.fabric.objects.upload import Progress as Report
from trimtab.weights.store.position import Position

_PIPE_WIDTH = 160
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?))?b?", re.IGNORECASE | re.ASCII)
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@contextmanager
def byte_bar(doing: str) -> Iterator[Report]:
    with _bars([doing], DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()) as (report,):
        yield report


@contextmanager
def count_bar(doing: str) -> Iterator[Report]:
    with _bars([doing], MofNCompleteColumn(), TimeRemainingColumn()) as (report,):
        yield report


@contextmanager
def phase_bars(*phases: str) -> Iterator[list[Report]]:
    """A bar for each of the phases of one piece of work, in shares."""
    with _bars(phases, TaskProgressColumn(), TimeRemainingColumn()) as reports:
        yield reports


@contextmanager
def _bars(phases: Sequence[str], *columns: ProgressColumn) -> Iterator[list[Report]]:
    """Each appears with its first report: what is there already needs none."""
    with Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=Console(stderr=True)) as progress:
        yield [_report(progress, progress.add_task(phase, total=None, visible=False)) for phase in phases]


def _report(progress: Progress, task: TaskID) -> Report:
    return lambda done, total: progress.update(task, completed=done, total=total, visible=True)


def output() -> Console:
    """Into a pipe, lines are as wide as tables need them."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def print_json(value: object) -> None:
    click.echo(msgspec.json.format(msgspec.json.encode(value), indent=2))


def plain(text: str) -> str:
    """Text from the store, without markup and without escapes for the terminal: anyone who can write may have put it
    there.
    """
    return escape(printable(text))


def place_text(position: Position | None) -> str:
    return "" if position is None else f"{position.epoch}/{position.version}"


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
