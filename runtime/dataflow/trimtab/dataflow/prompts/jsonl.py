"""JSON lines on disk: an index of where lines begin is kept, the lines themselves are read when they are needed."""

from __future__ import annotations

import json
import os
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from trimtab.dataflow.prompts.prompt import Progress, Prompt, PromptSourceError, checked_content
from trimtab.fabric.wire.errors import WireError

# JSON may be several times as long as what is sent, through escapes and white space; beyond this it is another format.
_MAX_LINE_BYTES = 64 << 20
_LINES_PER_NOTE = 65_536


class PromptFileChanged(Exception):
    """A file was changed while the job was using it: the index no longer fits, so the pod has to start again."""


class JsonLines:
    """One prompt per line; blank lines are skipped. The file is opened anew for each read, so that thousands of files
    cost no descriptors and one that was replaced is noticed."""

    def __init__(self, path: Path, *, prefix: str, prompt_column: str, progress: Progress) -> None:
        self._path = path
        self._prefix = prefix
        self._prompt_column = prompt_column
        self._begins = array("q")
        # Of each blank line, how many rows come before it: line numbers follow from that.
        self._rows_before_blank = array("q")
        with path.open("rb") as file:
            self._identity = _identity(file)
            self._index(file, progress)

    @property
    def length(self) -> int:
        return len(self._begins)

    def read(self, start: int, stop: int) -> list[Prompt]:
        return list(self._prompts(start, stop))

    def _prompts(self, start: int, stop: int) -> Iterator[Prompt]:
        with self._path.open("rb") as file:
            if _identity(file) != self._identity:
                raise PromptFileChanged(f"{self._path} was changed while the job was using it; it will be read anew")
            for row in range(start, stop):
                file.seek(self._begins[row])
                number = self._line_number(row)
                try:
                    content = checked_content(_parsed(file.readline()), prompt_column=self._prompt_column)
                except (RecursionError, WireError, ValueError) as error:
                    raise PromptSourceError(f"{self._path.name}, line {number}: {error}") from None
                yield Prompt(prompt_id=f"{self._prefix}-{number}", content=content)

    def _index(self, file: BinaryIO, progress: Progress) -> None:
        begin = 0
        # Only line feeds end a line: JSON strings may hold the other characters that str.splitlines would split at.
        while line := file.readline(_MAX_LINE_BYTES + 1):
            if len(line) > _MAX_LINE_BYTES:
                number = self._line_number(self.length)
                raise PromptSourceError(f"{self._path.name}, line {number}: longer than {_MAX_LINE_BYTES} bytes")
            if line.isspace():
                self._rows_before_blank.append(self.length)
            else:
                self._begins.append(begin)
            begin += len(line)
            if self.length % _LINES_PER_NOTE == 0:
                progress.note("indexing lines", source=self._prefix, rows=self.length)

    def _line_number(self, row: int) -> int:
        return row + 1 + bisect_right(self._rows_before_blank, row)


def _identity(file: BinaryIO) -> tuple[int, int, int]:
    status = os.fstat(file.fileno())
    return status.st_ino, status.st_size, status.st_mtime_ns


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg}") from None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
