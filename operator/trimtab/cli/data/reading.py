"""Rows of files as sets ship them: JSON lines, JSON, Parquet, or folders of those. Every row knows where it stands."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any] | str
"""A row, or what is wrong with it."""
_KINDS = (".jsonl", ".json", ".parquet")
_BATCH_ROWS = 256


class Unreadable(ValueError):
    """A whole file cannot be read, so nobody knows what is in it."""


def read_rows(paths: Sequence[Path]) -> Iterator[tuple[str, Row]]:
    """Each with its place, for messages. Raises Unreadable."""
    for path in paths:
        for file in _files(path):
            yield from _read(file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.is_file() and file.suffix.lower() in _KINDS)
    if not found:
        raise Unreadable(f"{path}: no file in it ends with {', '.join(_KINDS)}")
    return found


def _read(file: Path) -> Iterator[tuple[str, Row]]:
    kind = file.suffix.lower()
    if kind == ".parquet":
        return _parquet(file)
    if kind == ".json":
        return _json(file)
    if kind == ".jsonl":
        return _jsonl(file)
    raise Unreadable(f"{file}: its name ends with none of {', '.join(_KINDS)}; unpack it, or name it by what it is")


def _jsonl(file: Path) -> Iterator[tuple[str, Row]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield f"{file}, line {number}", _row(line)


def _json(file: Path) -> Iterator[tuple[str, Row]]:
    """A list of rows, an object with them in `data`, a single row as in MATH, or lines after all, as many `.json` files
    on hubs are.
    """
    text = file.read_bytes()
    try:
        value = json.loads(text)
    except ValueError as error:
        if not text.lstrip().startswith(b"{") or b"\n" not in text.strip():
            raise Unreadable(f"{file}: no JSON: {error}") from error
        yield from _jsonl(file)
        return
    if isinstance(value, dict) and isinstance(value.get("data"), list):
        value = value["data"]
    rows = value if isinstance(value, list) else [value]
    for number, row in enumerate(rows, start=1):
        yield f"{file}, row {number}", row if isinstance(row, dict) else f"a {type(row).__name__}, not an object"


def _row(line: bytes) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        return f"no JSON: {error}"
    return row if isinstance(row, dict) else f"a {type(row).__name__}, not an object"


def _parquet(file: Path) -> Iterator[tuple[str, Row]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise Unreadable(f"{file}: Parquet needs the package pyarrow: pip install 'trimtab[dataflow]'") from error
    try:
        number = 0
        # Sets of programs have megabytes of tests in a row: never all rows at once.
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", row
    except pyarrow.ArrowException as error:
        raise Unreadable(f"{file}: no Parquet: {error}") from error
