"""Arrow values as the plain values that tasks carry.

Numbers, texts, truth values, bytes and null stay what they are. Decimals become texts with all their digits. Dates,
times and timestamps become ISO 8601 texts, in UTC with a Z when they have a zone. Lists, structs and maps with text
keys become lists and objects. Everything else has no plain form that all would agree on, and is refused by its type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

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
