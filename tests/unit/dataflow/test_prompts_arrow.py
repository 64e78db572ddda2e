"""Prompts in Parquet files and Hugging Face folders, and what becomes of Arrow's types."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.support.dataflow.prompt_sources import (
    ids_of,
    order_of,
    prompts_of,
    write_dataset,
    write_dataset_dict,
    write_parquet,
)
from trimtab.dataflow.prompts.arrow import ArrowRows, plain_values
from trimtab.dataflow.prompts.prompt import PromptSourceError

PARQUET = {"name": "train", "parquet": {"uri": "p.parquet"}}
FOLDER = {"name": "train", "huggingFace": {"uri": "set"}}


def table(*prompts: Any) -> pa.Table:
    return pa.table({"prompt": list(prompts)})


NANOSECONDS = pa.array([1_700_000_000_000_000_001], type=pa.timestamp("ns"))
VALUES: dict[str, tuple[Any, Any]] = {
    "null": (pa.nulls(1), None),
    "bool": (pa.array([True]), True),
    "uint64": (pa.array([2**64 - 1], type=pa.uint64()), 2**64 - 1),
    "half": (pa.array(np.array([1.5], dtype=np.float16)), 1.5),
    "large text": (pa.array(["é"], type=pa.large_string()), "é"),
    "bytes": (pa.array([b"\x00\xff"]), b"\x00\xff"),
    "decimal": (pa.array([Decimal("12.50")]), "12.50"),
    "small decimal": (pa.array([Decimal("0.00000001")], type=pa.decimal128(38, 8)), "0.00000001"),
    "date": (pa.array([datetime.date(2026, 2, 28)]), "2026-02-28"),
    "date64": (pa.array([86_400_000], type=pa.date64()), "1970-01-02"),
    "timestamp": (pa.array([1], type=pa.timestamp("s")), "1970-01-01T00:00:01"),
    "nanoseconds": (NANOSECONDS, "2023-11-14T22:13:20.000000001"),
    "zone": (pa.array([0], type=pa.timestamp("ms", "Europe/Berlin")), "1970-01-01T00:00:00.000Z"),
    "time": (pa.array([3661], type=pa.time32("s")), "01:01:01"),
    "fine time": (pa.array([1], type=pa.time64("ns")), "00:00:00.000000001"),
    "category": (pa.array(["a"]).dictionary_encode(), "a"),
    "list": (pa.array([[1, None]]), [1, None]),
    "fixed list": (pa.array([[1, 2]], type=pa.list_(pa.int8(), 2)), [1, 2]),
    "struct": (pa.array([{"a": [{"b": Decimal("1.0")}], "c": None}]), {"a": [{"b": "1.0"}], "c": None}),
    "map": (pa.array([[("k", 1), ("l", None)]], type=pa.map_(pa.string(), pa.int8())), {"k": 1, "l": None}),
    "uuid": (pa.array([b"0" * 16], type=pa.uuid()), b"0" * 16),
}


@pytest.mark.parametrize(("array", "plain"), VALUES.values(), ids=VALUES)
def test_arrow_values_become_plain_ones(array: pa.Array, plain: Any) -> None:
    """Alone, and as the last of a slice of a list with nulls, where offsets are easily got wrong."""
    assert plain_values(array) == [plain]
    nested = pa.chunked_array([pa.array([None, None], type=array.type), array, array]).combine_chunks()
    assert plain_values(nested.slice(1, 2)) == [None, plain]
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 1, 4]), nested, mask=pa.array([False, True, False]))
    assert plain_values(lists.slice(1)) == [None, [None, plain, plain]]


@pytest.mark.parametrize(
    "kind",
    [
        pa.duration("s"),
        pa.month_day_nano_interval(),
        pa.list_(pa.duration("s")),
        pa.struct([("a", pa.map_(pa.int8(), pa.int8()))]),
        pa.dense_union([pa.field("a", pa.int8())]),
    ],
    ids=str,
)
def test_types_without_a_plain_form_are_refused_by_column(kind: pa.DataType) -> None:
    schema = pa.schema([("prompt", pa.string()), ("odd", kind)])
    with pytest.raises(PromptSourceError, match="set: column 'odd': values of type .* have no plain form"):
        ArrowRows(schema, [], file="set", prefix="train", prompt_column="prompt")


async def test_parquet_rows_are_prompts_with_ids_by_row(tmp_path: Path) -> None:
    columns = {"prompt": [f"p{number}" for number in range(10_000)], "at": [datetime.datetime(2026, 1, 1)] * 10_000}
    write_parquet(tmp_path / "p.parquet", columns, row_group_size=700)
    order = await order_of(tmp_path, PARQUET, epochs=1)
    assert order.total == 10_000
    assert prompts_of(order, 10_000) == columns["prompt"]
    last = order.at(9_999)
    assert last.prompt_id == "train-10000"
    assert last.content["at"] == "2026-01-01T00:00:00.000000"


async def test_nothing_of_what_was_unpacked_is_left_behind(tmp_path: Path) -> None:
    write_parquet(tmp_path / "p.parquet", {"prompt": ["a"]})
    await order_of(tmp_path, PARQUET)
    assert [path.name for path in tmp_path.iterdir()] == ["p.parquet"]


async def test_parquet_rows_that_cannot_be_sent_are_named(tmp_path: Path) -> None:
    write_parquet(tmp_path / "p.parquet", {"prompt": ["a", "b", None]})
    with pytest.raises(PromptSourceError, match="p.parquet, row 3: 'prompt' is of type NoneType"):
        await order_of(tmp_path, PARQUET)
    write_parquet(tmp_path / "p.parquet", {"prompt": ["a", "b"], "score": [0.0, float("nan")]})
    with pytest.raises(PromptSourceError, match="p.parquet, row 2: nan is not JSON; write null instead"):
        await order_of(tmp_path, PARQUET)
    write_parquet(tmp_path / "p.parquet", {"question": ["a"], "answer": ["b"]})
    with pytest.raises(PromptSourceError, match="p.parquet: there is no column 'prompt', only question, answer"):
        await order_of(tmp_path, PARQUET)


async def test_a_text_that_is_not_utf8_is_found_in_its_row(tmp_path: Path) -> None:
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 3], dtype=np.int32)), pa.py_buffer(b"a\xffb")]
    )
    write_parquet(tmp_path / "p.parquet", {"prompt": text})
    with pytest.raises(PromptSourceError, match="p.parquet, row 2: .*can't decode"):
        await order_of(tmp_path, PARQUET)


@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"x" * 10_000])
async def test_a_file_that_is_not_parquet_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(PromptSourceError, match="p.parquet: not readable as Parquet"):
        await order_of(tmp_path, PARQUET)


async def test_a_damaged_page_is_found_before_the_job_starts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    write_parquet(tmp_path / "p.parquet", {"prompt": [rng.bytes(200).hex() for _ in range(2000)]})
    content = bytearray((tmp_path / "p.parquet").read_bytes())
    content[1000:60_000] = rng.bytes(59_000)
    (tmp_path / "p.parquet").write_bytes(content)
    with pytest.raises(PromptSourceError, match="p.parquet"):
        await order_of(tmp_path, PARQUET)


async def test_a_split_of_a_hugging_face_folder_is_read_over_all_its_files(tmp_path: Path) -> None:
    shards = [table("a", "b", "c", "d"), table(), table("e")]
    shards[1] = shards[1].cast(shards[0].schema)
    write_dataset_dict(tmp_path / "set", {"train": shards, "test": [table("z")]})
    order = await order_of(tmp_path, FOLDER)
    assert prompts_of(order, 5) == list("abcde")
    assert ids_of(order, 5) == [f"train-{row}" for row in range(1, 6)]
    held_out = {"name": "train", "huggingFace": {"uri": "set", "split": "test"}}
    assert prompts_of(await order_of(tmp_path, held_out), 1) == ["z"]


async def test_a_folder_with_one_dataset_is_read_as_the_split_it_is(tmp_path: Path) -> None:
    for split in (None, "train", "train[:10]"):
        write_dataset(tmp_path / "set", [table("a")], split=split)
        assert prompts_of(await order_of(tmp_path, FOLDER), 1) == ["a"]
    write_dataset(tmp_path / "set", [table("a")], split="test")
    with pytest.raises(PromptSourceError, match="is the split 'test', not 'train'; set huggingFace.split"):
        await order_of(tmp_path, FOLDER)


async def test_hugging_face_folders_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    async def refused(why: str) -> None:
        with pytest.raises(PromptSourceError, match=why):
            await order_of(tmp_path, FOLDER)

    folder = tmp_path / "set"
    await refused("set does not exist")
    folder.mkdir()
    await refused("holds neither dataset_dict.json nor state.json")
    write_dataset(folder, [table("a")], _indices_data_files=[{"filename": "indices.arrow"}])
    await refused("indices file; save it again after dataset.flatten_indices")
    write_dataset(folder, [table("a")], _data_files=[{"filename": "../x.arrow"}])
    await refused("names '../x.arrow', which is not a file beside it")
    write_dataset(folder, [])
    await refused("names no data files")
    write_dataset(folder, [table("a"), pa.table({"prompt": [1]})])
    await refused("its columns are not those of the files before it")
    write_dataset(folder, [table("a")])
    file = folder / "data-00000-of-00001.arrow"
    file.write_bytes(file.read_bytes()[:-100])
    await refused("not readable as an Arrow stream")
    (folder / "state.json").write_text("[]")
    await refused("state.json: expected a JSON object")
    write_dataset_dict(folder, {"validation": [table("a")], "test": [table("a")]})
    await refused("has no split 'train', only validation, test")


async def test_wrong_offsets_in_an_arrow_file_are_refused_and_not_followed(tmp_path: Path) -> None:
    write_dataset(tmp_path / "set", [table("a", "bc")])
    file = tmp_path / "set/data-00000-of-00001.arrow"
    right, wrong = (np.array([0, 1, end], dtype=np.int32).tobytes() for end in (3, 2**30))
    assert file.read_bytes().count(right) == 1
    file.write_bytes(file.read_bytes().replace(right, wrong))
    with pytest.raises(PromptSourceError, match="not readable as an Arrow stream"):
        await order_of(tmp_path, FOLDER)
