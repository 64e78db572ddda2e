"""Arrow record batches in mapped files, read as prompts: only the rows asked for become Python objects.

Tasks carry plain values. Numbers, texts, truth values, bytes and null stay what they are. Decimals become texts with
all their digits. Dates, times and timestamps become ISO 8601 texts, in UTC with a Z when they have a zone. Lists,
structs and maps with text keys become lists and objects. Every other type has no plain form that all would agree on,
and is refused by its name.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trimtab.dataflow.prompts.prompt import Prompt, PromptSourceError, checked_content
from trimtab.fabric.wire.errors import WireError

_AS_THEY_ARE = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_string_view,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)


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


def check_schema(schema: pa.Schema) -> None:
    """Raises ValueError with the first column whose type has no plain form."""
    if len(set(schema.names)) != len(schema.names):
        raise ValueError("two columns have the same name")
    for field in schema:
        try:
            plain_values(pa.schema([field]).empty_table().column(0).combine_chunks())
        except pa.ArrowNotImplementedError:
            raise ValueError(f"column {field.name!r}: {_no_plain_form(field.type)}") from None
        except ValueError as error:
            raise ValueError(f"column {field.name!r}: {error}") from None


def plain_values(array: pa.Array) -> list[Any]:
    kind = array.type
    values: list[Any]
    if any(is_it(kind) for is_it in _AS_THEY_ARE):
        values = array.to_pylist()
    elif isinstance(kind, pa.BaseExtensionType):
        values = plain_values(array.storage)
    elif pa.types.is_decimal(kind):
        values = [None if value is None else format(value, "f") for value in array.to_pylist()]
    elif pa.types.is_date(kind):
        values = _iso_texts(array, unit="D")
    elif pa.types.is_timestamp(kind):
        values = _iso_texts(array, unit=kind.unit, end="Z" if kind.tz else "")
    elif pa.types.is_time(kind):
        since_midnight = array.cast(pa.int32() if pa.types.is_time32(kind) else pa.int64()).cast(pa.int64())
        moments = _iso_texts(since_midnight.cast(pa.timestamp(kind.unit)), unit=kind.unit)
        values = [None if moment is None else moment.partition("T")[2] for moment in moments]
    elif pa.types.is_dictionary(kind):
        values = plain_values(array.dictionary_decode())
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = _lists(array)
    elif pa.types.is_struct(kind):
        values = _objects(array)
    elif pa.types.is_map(kind) and (pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)):
        values = _maps(array)
    else:
        raise ValueError(_no_plain_form(kind))
    return values


def _no_plain_form(kind: pa.DataType) -> str:
    return f"values of type {kind} have no plain form; convert them to numbers or texts"


def _iso_texts(array: pa.Array, *, unit: str, end: str = "") -> list[str | None]:
    # By way of numpy, which has nanoseconds and any year, as Python's datetime has not.
    moments: NDArray[np.datetime64] = array.to_numpy(zero_copy_only=False).astype(f"datetime64[{unit}]")
    texts = np.datetime_as_string(moments).tolist()
    return [f"{text}{end}" if valid else None for text, valid in zip(texts, ~np.isnat(moments), strict=True)]


def _lists(array: pa.Array) -> list[list[Any] | None]:
    # Flattening leaves out what lies under a null.
    elements = iter(plain_values(array.flatten()))
    lengths = pc.list_value_length(array).to_pylist()
    return [None if length is None else [next(elements) for _ in range(length)] for length in lengths]


def _objects(array: pa.Array) -> list[dict[str, Any] | None]:
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        raise ValueError("two fields of a struct have the same name")
    columns = [plain_values(field) for field in array.flatten()]
    return [
        {name: column[row] for name, column in zip(names, columns, strict=True)} if valid else None
        for row, valid in enumerate(array.is_valid().to_pylist())
    ]


def _maps(array: pa.Array) -> list[dict[str, Any] | None]:
    ends = array.offsets.to_pylist()
    first, last = (ends[0], ends[-1]) if ends else (0, 0)
    # Of a slice, keys and items are those of the whole.
    keys = array.keys.slice(first, last - first).to_pylist()
    items = plain_values(array.items.slice(first, last - first))
    return [
        dict(zip(keys[begin - first : end - first], items[begin - first : end - first], strict=True)) if valid else None
        for begin, end, valid in zip(ends, ends[1:], array.is_valid().to_pylist(), strict=False)
    ]
