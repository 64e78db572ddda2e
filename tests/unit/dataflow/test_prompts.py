"""Prompts in JSON lines: what is one, what is refused, and what they are called."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from trimtab.dataflow.prompts.jsonl import JsonLines, PromptFileChanged
from trimtab.dataflow.prompts.prompt import Progress, Prompt, PromptSourceError, ReadingStopped


def quiet() -> Progress:
    return Progress(clock=time.monotonic, stopping=threading.Event())


def lines(path: Path, content: bytes) -> JsonLines:
    file = path / "p.jsonl"
    file.write_bytes(content)
    return JsonLines(file, prefix="train", prompt_column="prompt", progress=quiet())


def read(path: Path, content: bytes) -> list[Prompt]:
    rows = lines(path, content)
    return rows.read(0, rows.length)


def test_lines_are_prompts_with_ids_by_line(tmp_path: Path) -> None:
    prompts = read(tmp_path, b'{"prompt": "a", "answer": 1}\r\n\n  \n{"prompt": ["b"]}')
    assert [prompt.prompt_id for prompt in prompts] == ["train-1", "train-4"]
    assert prompts[0].content == {"prompt": "a", "answer": 1}


def test_any_row_is_read_without_the_others_and_named_by_its_line(tmp_path: Path) -> None:
    content = [b"" if number % 3 == 0 else json.dumps({"prompt": f"p{number}"}).encode() for number in range(1, 100)]
    rows = lines(tmp_path, b"\n\n" + b"\n".join(content))
    kept = [number for number in range(1, 100) if number % 3]
    assert rows.length == len(kept)
    for row in (65, 0, 40, 1, 64):
        (prompt,) = rows.read(row, row + 1)
        assert (prompt.prompt_id, prompt.content["prompt"]) == (f"train-{kept[row] + 2}", f"p{kept[row]}")


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
        (b'{"prompt": null}', "'prompt' is of type NoneType; expected a text or a list"),
        (b'{"prompt": "\xff"}', "can't decode"),
        (b'{"prompt": "\\ud800"}', "surrogates not allowed"),
        (b'{"prompt": NaN}', "NaN is not JSON"),
        (b'{"prompt": "a", "score": [{"x": 1e999}]}', "inf is not JSON"),
        (b'{"prompt": ' + b"9" * 40 + b"}", "cannot be sent"),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", "nested deeper"),
        (b'{"prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion"),
        (b'{"prompt": "' + b"x" * (4 << 20) + b'"}', "bytes, at most"),
        (b'{"prompt": "a"}' + b" " * (64 << 20), "longer than"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_no_prompt_is_named_by_file_and_line(tmp_path: Path, line: bytes, why: str) -> None:
    with pytest.raises(PromptSourceError, match=f"p.jsonl, line 3: .*{why}"):
        read(tmp_path, b'{"prompt": "a"}\n\n' + line)


def test_a_file_that_changes_under_a_running_job_is_noticed(tmp_path: Path) -> None:
    rows = lines(tmp_path, b'{"prompt": "a"}\n{"prompt": "b"}\n')
    with (tmp_path / "p.jsonl").open("ab") as file:
        file.write(b'{"prompt": "c"}\n')
    with pytest.raises(PromptFileChanged, match="p.jsonl was changed"):
        rows.read(1, 2)


def test_reading_ends_when_nobody_waits_for_it(tmp_path: Path) -> None:
    stopping = threading.Event()
    stopping.set()
    file = tmp_path / "p.jsonl"
    file.write_bytes(b"\n" * 10)
    with pytest.raises(ReadingStopped):
        JsonLines(file, prefix="train", prompt_column="prompt", progress=Progress(clock=time.time, stopping=stopping))
