"""`trimtab data convert SET FILE…`: rows of a known set become prompts, each once, none of them held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import click

from trimtab.cli.data.likeness import WORDS, HeldOut, normalised
from trimtab.cli.data.reading import Unreadable, read_rows
from trimtab.cli.data.rows import BadRow
from trimtab.cli.data.sets import SETS

EXIT_BAD_ROWS = 1
EXIT_UNREADABLE = 2
_MOST_NAMED = 20


@dataclass
class Tally:
    """What became of the rows."""

    read: int = 0
    written: int = 0
    bad: list[str] = field(default_factory=list)
    repeated: int = 0
    overlapping: list[str] = field(default_factory=list)
    checks: Counter[str] = field(default_factory=Counter)
    longest: int = 0


@click.command()
@click.argument("dataset", metavar="SET", type=click.Choice(sorted(SETS)))
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(exists=True, path_type=Path))
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines to write.")
@click.option(
    "--held-out",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Converted prompts that must not be trained on; rows like them are left out. May be given several times.",
)
@click.pass_context
def convert(
    context: click.Context, dataset: str, files: tuple[Path, ...], out: Path, held_out: tuple[Path, ...]
) -> None:
    """Convert FILE... of SET into prompts.

    A FILE is JSON lines, JSON or Parquet, or a folder of them. Rows that cannot be used are named with what is wrong,
    and then the exit status is 1; the others are written all the same. Nothing is written when a FILE cannot be read:
    that is 2.
    """
    tally = Tally()
    try:
        known = HeldOut(_prompts(held_out))
        # Beside its final name, so that nobody takes half a file for a whole one.
        partial = out.with_name(f"{out.name}.partial")
        with partial.open("w", encoding="utf-8") as written:
            _convert(dataset, files, known, tally=tally, written=written)
        partial.replace(out)
    except (Unreadable, OSError) as error:
        click.echo(f"unreadable: {error}", err=True)
        context.exit(EXIT_UNREADABLE)
    _tell(tally, dataset=dataset, out=out, held_out=held_out)
    context.exit(EXIT_BAD_ROWS if tally.bad else 0)


def _convert(dataset: str, files: Sequence[Path], held_out: HeldOut, *, tally: Tally, written: TextIO) -> None:
    converted = SETS[dataset]
    seen: set[str] = set()
    for place, row in read_rows(files):
        tally.read += 1
        if isinstance(row, str):
            tally.bad.append(f"{place}: {row}")
            continue
        try:
            prompt = converted.prompt(row)
        except BadRow as error:
            tally.bad.append(f"{place}: {error}")
            continue
        text = normalised(prompt["prompt"])
        if text in seen:
            tally.repeated += 1
            continue
        seen.add(text)
        if held_out.resembles(text):
            tally.overlapping.append(place)
            continue
        written.write(json.dumps({**prompt, "source": dataset}, ensure_ascii=False) + "\n")
        tally.written += 1
        tally.checks[converted.check] += 1
        tally.longest = max(tally.longest, len(prompt["prompt"]))


def _prompts(files: Sequence[Path]) -> Iterator[str]:
    for place, row in read_rows(files):
        if isinstance(row, str) or not isinstance(row.get("prompt"), str):
            raise Unreadable(f"{place}: no text in a column `prompt`: convert the held-out set first")
        yield row["prompt"]


def _tell(tally: Tally, *, dataset: str, out: Path, held_out: Sequence[Path]) -> None:
    for what in tally.bad[:_MOST_NAMED]:
        click.echo(what, err=True)
    if len(tally.bad) > _MOST_NAMED:
        click.echo(f"… and {len(tally.bad) - _MOST_NAMED} more rows that cannot be used", err=True)
    for place in tally.overlapping[:_MOST_NAMED]:
        click.echo(f"{place}: left out: like a held-out prompt", err=True)
    if len(tally.overlapping) > _MOST_NAMED:
        click.echo(f"… and {len(tally.overlapping) - _MOST_NAMED} more rows like held-out prompts", err=True)
    (check,) = tally.checks or ("none",)
    lines: list[tuple[str, Any]] = [
        ("set", dataset),
        ("rows read", tally.read),
        ("cannot be used", len(tally.bad)),
        ("repeated (equal but for case, space and punctuation)", tally.repeated),
    ]
    if held_out:
        lines.append((f"like a held-out prompt (equal, or half of all runs of {WORDS} words)", len(tally.overlapping)))
    lines += [
        (f"written to {out}", tally.written),
        ("longest prompt, characters", tally.longest),
        ("to be checked by", check),
    ]
    for name, value in lines:
        click.echo(f"{name}: {value}")
