"""What a prompt is, and what makes one unfit to be sent: better found when the job starts than in the middle of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec
import structlog

from trimtab.fabric.pod import JobMisconfigured
from trimtab.fabric.wire.values import check_plain

_log = structlog.get_logger(__name__)
MAX_KEYS = 4096
MAX_LABEL = 64
BLOCK_ROWS = 256
"""Rows that one pass over a source reads at a time."""
# A task has other fields, too.
_MAX_BYTES = 3 << 20
_EVERY_S = 10.0


class PromptSourceError(JobMisconfigured):
    """A prompt source cannot be read; the message names the file, the line or row, and what is wrong."""


class UnfitPrompt(ValueError):
    """A row is no prompt; the message says why, and the reader of the source adds which row it is."""


@dataclass(frozen=True)
class Prompt:
    """One row of a source: its identity and everything that reaches the workflow."""

    prompt_id: str
    content: Mapping[str, Any]


def label_of(prompt: Prompt, *, column: str | None) -> str:
    """What the prompt is labelled with for routing. Raises JobMisconfigured for a value that is no label."""
    value = None if column is None else prompt.content.get(column)
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int) and 0 < len(str(value)) <= MAX_LABEL:
        return str(value)
    raise JobMisconfigured(
        f"data.routeColumn: prompt {prompt.prompt_id!r} has {value!r:.80} in column {column!r}; a label is a text of 1 "
        f"to {MAX_LABEL} characters, a whole number or a truth value"
    )


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


class ReadingStopped(Exception):
    """The pod was told to stop before the source was read."""


class Progress:
    """Reading a large source takes minutes: the log says how far it is, and a pod that is told to stop does not finish
    it. The thread that reads notes every block of rows; another thread sets `stopping`.
    """

    def __init__(self, *, clock: Callable[[], float], stopping: threading.Event) -> None:
        self._clock = clock
        self._stopping = stopping
        self._logged_at = clock()

    def note(self, doing: str, *, source: str, rows: int, of: int | None = None) -> None:
        if self._stopping.is_set():
            raise ReadingStopped(f"{source}: given up while {doing}, after {rows} rows")
        if self._clock() >= self._logged_at + _EVERY_S:
            self._logged_at = self._clock()
            _log.info("reading_prompts", source=source, doing=doing, rows=rows, of=of)
