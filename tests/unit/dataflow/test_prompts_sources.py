"""From a manifest to an order: folders, ids, mixing and the limit on length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.dataflow.prompt_sources import (
    ids_of,
    order_of,
    prompts_of,
    write_jsonl,
    write_parquet,
    write_tokenizer,
)
from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.dataflow.prompts.validation import prompt_text

TRAIN = {"name": "train", "jsonl": {"uri": "data"}}


async def test_files_of_a_folder_are_one_source_in_the_order_of_their_names(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data/b.jsonl", ["c"])
    write_jsonl(tmp_path / "data/a.jsonl", ["a", "b"])
    write_jsonl(tmp_path / "data/empty.jsonl", [])
    write_jsonl(tmp_path / "data/z.jsonl", ["d"])
    for other in ("data/.b.jsonl", "data/c.json", "data/below/x.jsonl"):
        write_jsonl(tmp_path / other, ["never"])
    order = await order_of(tmp_path, TRAIN, epochs=2)
    assert order.total == 8
    assert prompts_of(order, 8) == list("abcd") * 2
    assert ids_of(order, 4) == ["train-a-1", "train-a-2", "train-b-1", "train-z-1"]


async def test_parquet_files_of_a_folder_need_not_have_the_same_columns(tmp_path: Path) -> None:
    write_parquet(tmp_path / "data/1.parquet", {"prompt": ["a", "b"], "answer": [1, 2]})
    write_parquet(tmp_path / "data/2.parquet", {"prompt": ["c"], "tags": [["x"]]})
    order = await order_of(tmp_path, {"name": "train", "parquet": {"uri": "data"}})
    assert [dict(order.at(position).content) for position in range(3)] == [
        {"prompt": "a", "answer": 1},
        {"prompt": "b", "answer": 2},
        {"prompt": "c", "tags": ["x"]},
    ]
    assert ids_of(order, 3) == ["train-1-1", "train-1-2", "train-2-1"]


async def test_sources_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\].jsonl.uri: .*data does not exist"):
        await order_of(tmp_path, TRAIN)
    (tmp_path / "data").mkdir()
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\].jsonl.uri: .*data holds no \*.jsonl file"):
        await order_of(tmp_path, TRAIN)
    write_jsonl(tmp_path / "data/a.jsonl", [])
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\] holds no prompt"):
        await order_of(tmp_path, TRAIN)
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\]: s3://b/k needs .* and TRIMTAB_SCRATCH"):
        await order_of(tmp_path, {"name": "train", "jsonl": {"uri": "s3://b/k"}})


async def test_no_two_prompts_have_the_same_id(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data/b-1.jsonl", ["a"])
    write_jsonl(tmp_path / "other/1.jsonl", ["a"])
    write_jsonl(tmp_path / "other/2.jsonl", ["a"])
    sources = {"name": "a", "jsonl": {"uri": "data"}}, {"name": "a-b", "jsonl": {"uri": "other"}}
    with pytest.raises(PromptSourceError, match="two files would be called a-b-1-1; rename one"):
        await order_of(tmp_path, *sources)
    write_jsonl(tmp_path / f"long/{'x' * 240}.jsonl", ["a"])
    with pytest.raises(PromptSourceError, match="at most 236 characters"):
        await order_of(tmp_path, {"name": "train", "jsonl": {"uri": "long"}})


async def test_sources_are_mixed_by_weight_and_each_keeps_its_own_order_and_column(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data.jsonl", [f"j{number}" for number in range(40)])
    write_parquet(tmp_path / "p.parquet", {"question": [f"p{number}" for number in range(30)]})
    sources: list[dict[str, Any]] = [
        {"name": "lines", "jsonl": {"uri": "data.jsonl"}, "weight": 3},
        {"name": "rows", "parquet": {"uri": "p.parquet"}, "promptColumn": "question"},
    ]
    order = await order_of(tmp_path, *sources, epochs=1)
    ids = ids_of(order, 40)
    assert [name for name in ids if name.startswith("lines")] == [f"lines-{row}" for row in range(1, 31)]
    assert [name for name in ids if name.startswith("rows")] == [f"rows-{row}" for row in range(1, 11)]
    assert all(
        sum(name.startswith("rows") for name in ids[start : start + 8]) in (1, 2, 3) for start in range(len(ids) - 8)
    )
    assert order.total in range(117, 121)
    again = await order_of(tmp_path, *reversed(sources), epochs=1)
    assert ids_of(again, 40) == ids, "the order of the manifest does not matter"


async def test_prompts_that_are_too_long_for_any_policy_are_skipped_and_counted(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "model", pattern=r"[\s\S]", truncate=2)
    prompts = ["a", "abc", "ab cd", "abcd", [{"role": "user", "content": "abc"}], ["a", "b", "c"]]
    write_jsonl(tmp_path / "data", prompts)
    with capture_logs() as logs:
        order = await order_of(tmp_path, TRAIN, models=("model", "model"), maxPromptTokens=3, epochs=1)
    assert (order.total, order.skipped) == (3, 3)
    assert ids_of(order, 3) == ["train-1", "train-2", "train-5"]
    (line,) = [log for log in logs if log["event"] == "prompts_read"]
    assert (line["source"], line["prompts"], line["skipped"]) == ("train", 3, 3)
    everything = await order_of(tmp_path, TRAIN, maxPromptTokens=5, epochs=1)
    assert (everything.total, everything.skipped) == (6, 0)


async def test_a_prompt_must_fit_for_every_policy(tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "letters", pattern=r"\S")
    write_tokenizer(tmp_path / "words", pattern=r"\w+|\s")
    write_jsonl(tmp_path / "data", ["abcd", "a b c", "ab"])
    order = await order_of(tmp_path, TRAIN, models=("letters", "words"), maxPromptTokens=3)
    assert (ids_of(order, 1), order.skipped) == (["train-3"], 2)


async def test_a_limit_that_cannot_be_held_is_refused(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "data", ["abcd", "abcde"])
    with pytest.raises(PromptSourceError, match="data.maxPromptTokens: .*model/tokenizer.json does not exist"):
        await order_of(tmp_path, TRAIN, maxPromptTokens=3)
    write_tokenizer(tmp_path / "model", pattern=".")
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\]: all 2 prompts are longer than maxPromptTok"):
        await order_of(tmp_path, TRAIN, maxPromptTokens=3)
    endless = {"name": "made", "generator": {"entrypoint": f"{__name__}:Endless"}}
    with pytest.raises(PromptSourceError, match=r"data.prompts\[made\]: maxPromptTokens cannot be held with a gen"):
        await order_of(tmp_path, endless, maxPromptTokens=3)
    (tmp_path / "model/tokenizer.json").write_text("{}")
    with pytest.raises(PromptSourceError, match="data.maxPromptTokens: .*tokenizer.json cannot be loaded"):
        await order_of(tmp_path, TRAIN, maxPromptTokens=3)


class Endless:
    def prompt(self, number: int) -> dict[str, Any]:
        return {"prompt": "x"}


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("as it is ", "as it is "),
        (["a", "b"], "a\nb"),
        ([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}], "a\nb"),
        ([{"content": [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}, {"text": "b"}]}], "a\nb"),
        ([{"role": "user"}, {"content": None}, 3], ""),
    ],
)
def test_chats_are_counted_by_their_contents(prompt: Any, text: str) -> None:
    assert prompt_text(prompt) == text
