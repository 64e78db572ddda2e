"""Columns of a row that somebody else wrote: found by one of their names, and of the kind they should be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class BadRow(ValueError):
    """The row cannot become a prompt. It says what is wrong with it."""


def text_of(row: Mapping[str, Any], *names: str) -> str:
    """The first of these columns that is there. Raises BadRow."""
    value = value_of(row, *names)
    if not isinstance(value, str) or not value.strip():
        raise BadRow(f"column {_found(row, names)} is {value!r:.80}: a text is needed")
    return value.strip()


def value_of(row: Mapping[str, Any], *names: str) -> Any:
    found = _found(row, names)
    if found is None:
        raise BadRow(f"no column {' or '.join(names)}; it has {', '.join(map(str, row)) or 'none'}")
    return row[found]


def number_text(value: Any, *, column: str) -> str:
    """A number as people write it: 33 for 33.0. Texts remain as they are. Raises BadRow."""
    if isinstance(value, bool) or not isinstance(value, int | float | str) or value != value:
        raise BadRow(f"column {column} is {value!r:.80}: a number or a text is needed")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    text = str(value).strip()
    if not text:
        raise BadRow(f"column {column} is empty")
    return text


def _found(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if row.get(name) is not None), None)
