"""What a prompt is, and what makes one unfit to be sent: better found when the job starts than in the middle of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.values import check_plain

MAX_KEYS = 4096
BLOCK_ROWS = 256
"""Rows that whoever goes through a source reads at a time."""
# A task has other fields, too.
_MAX_BYTES = 3 << 20


class PromptSourceError(JobMisconfigured):
    """A prompt source cannot be read; the message names the file, the line or row, and what is wrong."""


class UnfitPrompt(ValueError):
    """A row is no prompt; the message says why, and whoever reads it adds where it is."""


@dataclass(frozen=True)
class Prompt:
    """One row of a source: its identity and everything that reaches the workflow."""

    prompt_id: str
    content: Mapping[str, Any]


class PromptRows(Protocol):
    """A source that gives any of its rows at any time, and the same one whenever it is asked."""

    @property
    def length(self) -> int | None:
        """Number of rows; None for no end."""

    def read(self, start: int, stop: int) -> list[Prompt]:
        """Rows from `start` to before `stop`, counted from 0. Raises PromptSourceError for one that cannot be sent."""


def checked_content(content: object, *, prompt_column: str) -> dict[str, Any]:
    """The content as a task can carry it. Raises UnfitPrompt, or a WireError or ValueError of
    what cannot be encoded."""
    if not isinstance(content, dict) or prompt_column not in content:
        raise UnfitPrompt(f"expected an object with the key {prompt_column!r}")
    check_plain(content, field="prompt")
    _refuse_infinite(content.values())
    try:
        size = len(msgspec.msgpack.encode(content))
    except OverflowError as error:
        raise UnfitPrompt(f"a number cannot be sent: {error}") from None
    if len(content) > MAX_KEYS or size > _MAX_BYTES:
        raise UnfitPrompt(f"{len(content)} keys and {size} bytes, at most {MAX_KEYS} and {_MAX_BYTES} can be sent")
    if not isinstance(content[prompt_column], str | list | tuple):
        kind = type(content[prompt_column]).__name__
        raise UnfitPrompt(f"{prompt_column!r} is of type {kind}; expected a text or a list of chat messages")
    return content


def _refuse_infinite(values: Iterable[Any]) -> None:
    """No deeper than check_plain allows."""
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise UnfitPrompt(f"{value} is not JSON; write null instead")
        if isinstance(value, dict):
            _refuse_infinite(value.values())
        elif isinstance(value, list | tuple):
            _refuse_infinite(value)
