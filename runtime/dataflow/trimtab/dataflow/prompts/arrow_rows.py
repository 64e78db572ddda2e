"""Rows of Arrow record batches that lie in mapped files: only those asked for become Python objects."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from trimtab.dataflow.prompts.arrow import check_schema, plain_values
from trimtab.dataflow.prompts.prompt import Prompt, PromptSourceError, checked_content
from trimtab.fabric.wire.errors import WireError


class ArrowRows:
    """One prompt per row. `file` is what messages call it."""

    def __init__(
        self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], *, file: str, prefix: str, prompt_column: str
    ) -> None:
        try:
            check_schema(schema)
        except ValueError as error:
            raise PromptSourceError(f"{file}: {error}") from None
        if prompt_column not in schema.names:
            raise PromptSourceError(f"{file}: there is no column {prompt_column!r}, only {', '.join(schema.names)}")
        self._batches = batches
        self._ends = list(accumulate(batch.num_rows for batch in batches))
        self._file = file
        self._prefix = prefix
        self._prompt_column = prompt_column

    @property
    def length(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, stop: int) -> list[Prompt]:
        prompts = []
        for number, content in enumerate(self._contents(start, stop), start=start + 1):
            try:
                checked = checked_content(content, prompt_column=self._prompt_column)
            except (WireError, ValueError) as error:
                raise self._unfit(number, error) from None
            prompts.append(Prompt(prompt_id=f"{self._prefix}-{number}", content=checked))
        return prompts

    def _contents(self, start: int, stop: int) -> Iterator[dict[str, Any]]:
        while start < stop:
            number = bisect_right(self._ends, start)
            batch, before = self._batches[number], self._ends[number - 1] if number else 0
            count = min(stop, self._ends[number]) - start
            yield from self._plain(batch.slice(start - before, count), first=start + 1)
            start += count

    def _plain(self, rows: pa.RecordBatch, *, first: int) -> list[dict[str, Any]]:
        try:
            columns = [plain_values(column) for column in rows.columns]
        except (pa.ArrowException, ValueError) as error:
            # A text that is not UTF-8, for instance: found again in the one row that has it.
            if rows.num_rows == 1:
                raise self._unfit(first, error) from None
            return [self._plain(rows.slice(row, 1), first=first + row)[0] for row in range(rows.num_rows)]
        return [dict(zip(rows.schema.names, values, strict=True)) for values in zip(*columns, strict=True)]

    def _unfit(self, number: int, error: Exception) -> PromptSourceError:
        return PromptSourceError(f"{self._file}, row {number}: {error}")
