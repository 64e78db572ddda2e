"""Several files of one source, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from trimtab.dataflow.prompts.arrow_rows import ArrowRows
from trimtab.dataflow.prompts.jsonl import JsonLines
from trimtab.dataflow.prompts.prompt import Prompt


class JoinedRows:
    """Row n of the whole is in the file where n falls."""

    def __init__(self, parts: Sequence[JsonLines | ArrowRows]) -> None:
        self._parts = parts
        self._ends = list(accumulate(part.length for part in parts))

    @property
    def length(self) -> int:
        return self._ends[-1]

    def read(self, start: int, stop: int) -> list[Prompt]:
        prompts: list[Prompt] = []
        while start < stop:
            number = bisect_right(self._ends, start)
            before = self._ends[number - 1] if number else 0
            end = min(stop, self._ends[number])
            prompts += self._parts[number].read(start - before, end - before)
            start = end
        return prompts
