"""Reading prompts, and the order they come in."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.dataflow.prompts import Prompt, PromptOrder, PromptSourceError, read_jsonl


def read(path: Path, content: bytes) -> list[Prompt]:
    file = path / "p.jsonl"
    file.write_bytes(content)
    return read_jsonl(file, source="train", prompt_column="prompt")


def test_lines_are_prompts_with_ids_by_line(tmp_path: Path) -> None:
    prompts = read(tmp_path, b'{"prompt": "a", "answer": 1}\r\n\n  \n{"prompt": ["b"]}')
    assert [prompt.prompt_id for prompt in prompts] == ["train-1", "train-4"]
    assert prompts[0].content == {"prompt": "a", "answer": 1}


def test_only_line_feeds_end_a_line(tmp_path: Path) -> None:
    text = "one\u2028two\x85three"
    (prompt,) = read(tmp_path, json.dumps({"prompt": text}, ensure_ascii=False).encode())
    assert prompt.content["prompt"] == text


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"{", "not JSON"),
        (b"[1]", "expected an object with the key 'prompt'"),
        (b'{"question": "a"}', "expected an object with the key 'prompt'"),
        (b'{"prompt": "\xff"}', "can't decode"),
        (b'{"prompt": NaN}', "NaN is not JSON"),
        (b'{"prompt": ' + b"9" * 40 + b"}", "cannot be sent"),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"prompt": "' + b"x" * (4 << 20) + b'"}', "bytes, at most"),
    ],
)
def test_what_is_no_prompt_is_named_by_file_and_line(tmp_path: Path, line: bytes, why: str) -> None:
    with pytest.raises(PromptSourceError, match=f"p.jsonl, line 2: .*{why}"):
        read(tmp_path, b'{"prompt": "a"}\n' + line)


def test_a_missing_or_empty_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PromptSourceError, match="holds no prompt"):
        read(tmp_path, b"\n\n")
    with pytest.raises(PromptSourceError, match=r"data.prompts\[train\].jsonl.uri: .*gone is not a file"):
        read_jsonl(tmp_path / "gone", source="train", prompt_column="prompt")


@given(st.integers(1, 20), st.integers(0, 2**31 - 1), st.booleans())
def test_each_epoch_has_every_prompt_once_in_an_order_that_only_the_seed_decides(
    count: int, seed: int, shuffle: bool
) -> None:
    prompts = [Prompt(f"train-{number}", {}) for number in range(count)]
    order = PromptOrder(prompts, seed=seed, shuffle=shuffle)
    run = [order.at(position).prompt_id for position in range(3 * count)]
    for epoch in range(3):
        assert sorted(run[epoch * count : (epoch + 1) * count]) == sorted(prompt.prompt_id for prompt in prompts)
    if not shuffle:
        assert run == [prompt.prompt_id for prompt in prompts] * 3
    again = PromptOrder(prompts, seed=seed, shuffle=shuffle)
    assert [again.at(position).prompt_id for position in reversed(range(3 * count))] == run[::-1]


def test_epochs_bound_the_total() -> None:
    prompts = [Prompt("train-1", {})]
    assert PromptOrder(prompts, seed=0, shuffle=True).total is None
    assert PromptOrder(prompts, seed=0, shuffle=True, epochs=3).total == 3
