"""What commands on weights show: bars on the error stream while they work, tables and JSON on the output."""

from __future__ import annotations

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

from trimtab.fabric.objects.upload import Progress as Report
from trimtab.weights.store.position import Position

_PIPE_WIDTH = 160


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
    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def place_text(position: Position | None) -> str:
    return "" if position is None else f"{position.epoch}/{position.version}"
