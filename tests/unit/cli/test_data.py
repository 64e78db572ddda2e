"""`trimtab data convert`: the common sets in the layouts they ship in become prompts, and no row is lost in silence.

The rows are made up; their columns are those of the sets.
"""

from __future__ import annotations

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from click.testing import CliRunner, Result

from trimtab.cli.main import main

STDIN = [{"input": "1 2\n", "output": "3\n", "testtype": "stdin"}]
CALLED = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
HIDDEN = [{"input": "4 5\n", "output": "9\n", "testtype": "stdin"}]
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is $2+3$?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def packed(cases: object) -> str:
    """As LiveCodeBench's lite version packs its private cases."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(cases)))).decode()


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def convert(dataset: str, *files: Path, held_out: tuple[Path, ...] = ()) -> tuple[Result, list[dict[str, Any]]]:
    out = files[0].parent / "out" / "prompts.jsonl"
    out.parent.mkdir(exist_ok=True)
    options = [option for file in held_out for option in ("--held-out", str(file))]
    result = CliRunner().invoke(main, ["data", "convert", dataset, *map(str, files), "--out", str(out), *options])
    prompts = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    return result, prompts


@pytest.mark.parametrize(
    ("dataset", "file", "row", "prompt"),
    [
        (
            *("gsm8k", "train.jsonl"),
            {"question": "Ann has 2 pears.", "answer": "She has 2*600=<<2*600=1200>>1,200.\n#### 1,200"},
            {"prompt": "Ann has 2 pears.", "answer": "1200"},
        ),
        (
            *("math", "train.parquet"),
            {
                "problem": "Half?",
                "level": "Level 1",
                "type": "Algebra",
                "solution": r"$\boxed{1}$, so \boxed{\frac{1}{2}}.",
            },
            {"prompt": "Half?", "answer": r"\frac{1}{2}"},
        ),
        (
            *("math", "test.jsonl"),
            {"problem": "Sum?", "solution": "x", "answer": "42", "subject": "Algebra", "level": 1, "unique_id": "a"},
            {"prompt": "Sum?", "answer": "42"},
        ),
        (
            *("dapo-math", "dapo-math-17k.parquet"),
            {
                "data_source": "math_dapo",
                "prompt": [{"content": DAPO, "role": "user"}],
                "ability": "MATH",
                "reward_model": {"ground_truth": "5", "style": "rule-lighteval/MATH_v2"},
                "extra_info": {"index": "0"},
            },
            {"prompt": "What is $2+3$?", "answer": "5"},
        ),
        (
            *("deepscaler", "deepscaler.json"),
            {"problem": "One?", "answer": "-\\frac{2}{3}", "solution": "long"},
            {"prompt": "One?", "answer": "-\\frac{2}{3}"},
        ),
        (
            *("deepcoder", "taco.parquet"),
            {"problem": "Add.", "tests": json.dumps({"inputs": ["1 2\n"], "outputs": ["3\n"]}), "solutions": ["x"]},
            {"prompt": "Add.", "tests": {"inputs": ["1 2\n"], "outputs": ["3\n"]}},
        ),
        (
            *("deepcoder", "primeintellect.parquet"),
            {
                "problem": "Add.",
                "tests": json.dumps([{"fn_name": "add", "input": [1, 2], "output": 3, "type": "function_call"}]),
            },
            {"prompt": "Add.", "tests": {"inputs": [[1, 2]], "outputs": [3], "fn_name": "add"}},
        ),
        (
            *("livecodebench", "test.jsonl"),
            {
                "question_title": "A",
                "question_content": "Add two numbers.",
                "platform": "atcoder",
                "starter_code": "",
                "public_test_cases": json.dumps(STDIN),
                "private_test_cases": packed(HIDDEN),
                "metadata": "{}",
            },
            {"prompt": "Add two numbers.", "tests": {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]}},
        ),
        (
            *("livecodebench", "test.jsonl"),
            {
                "question_content": "Add.",
                "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
                "public_test_cases": json.dumps(CALLED),
                "private_test_cases": "[]",
                "metadata": json.dumps({"func_name": "add"}),
            },
            {
                "prompt": "Add.\n\nBegin with:\n```python\nclass Solution:\n    def add(self, a, b):\n```",
                "tests": {"inputs": ["[1, 2]\n3"], "outputs": ["6"], "fn_name": "add"},
            },
        ),
        (
            *("hotpotqa", "hotpot_train_v1.1.json"),
            {"_id": "5a", "answer": "Oslo", "question": "Where?", "supporting_facts": [["A", 0]], "context": []},
            {"prompt": "Where?", "answer": "Oslo"},
        ),
        (
            *("nq", "NQ-open.train.jsonl"),
            {"question": "where is oslo", "answer": ["Norway", "the Kingdom of Norway"]},
            {"prompt": "where is oslo?", "answer": ["Norway", "the Kingdom of Norway"]},
        ),
        (
            *("nq", "nq.parquet"),
            {"id": "train_0", "question": "where is oslo?", "golden_answers": ["Norway"]},
            {"prompt": "where is oslo?", "answer": ["Norway"]},
        ),
        ("aime", "aime.parquet", {"ID": "2024-I-1", "Problem": "P?", "Answer": 204}, {"prompt": "P?", "answer": "204"}),
        ("amc", "amc.parquet", {"id": 0, "problem": "P?", "answer": 142.0}, {"prompt": "P?", "answer": "142"}),
    ],
)
def test_a_row_of_each_set_becomes_a_prompt(
    tmp_path: Path, dataset: str, file: str, row: dict[str, Any], prompt: dict[str, Any]
) -> None:
    result, (made,) = convert(dataset, written(tmp_path / file, [row]))
    assert result.exit_code == 0, result.output
    if "tests" in made:
        made["tests"] = json.loads(made["tests"])
    assert made == {**prompt, "source": dataset}


def test_the_original_math_is_a_folder_of_files_with_one_problem_each(tmp_path: Path) -> None:
    folder = tmp_path / "MATH" / "train" / "algebra"
    folder.mkdir(parents=True)
    for number in range(3):
        problem = {"problem": f"What is {number}?", "solution": f"\\boxed{{{number}}}"}
        (folder / f"{number}.json").write_text(json.dumps(problem))
    _, prompts = convert("math", tmp_path / "MATH")
    assert [prompt["answer"] for prompt in prompts] == ["0", "1", "2"]


def test_a_json_file_of_lines_is_read_as_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    file.write_text('{"question": "a?", "answer": "#### 1"}\n{"question": "b?", "answer": "#### 2"}\n')
    assert len(convert("gsm8k", file)[1]) == 2


@pytest.mark.parametrize(
    ("dataset", "row", "message"),
    [
        ("gsm8k", {"question": "a?"}, "no column answer; it has question"),
        ("gsm8k", {"question": "a?", "answer": "7"}, "no #### with a number behind it"),
        ("gsm8k", {"question": "a?", "answer": "#### seven"}, "'seven' behind #### is no number"),
        ("gsm8k", {"question": " ", "answer": "#### 7"}, "column question is ' ': a text is needed"),
        ("math", {"problem": "a?", "solution": "7"}, r"column solution has no \boxed{} answer"),
        ("math", {"problem": "a?", "solution": r"\boxed{\frac{1}{2}"}, "empty, or never closed"),
        ("dapo-math", {"prompt": [], "reward_model": {"ground_truth": "1"}}, "0 messages of a user: one is needed"),
        ("dapo-math", {"prompt": "a?", "reward_model": {}}, "column reward_model.ground_truth is None"),
        ("deepscaler", {"problem": "a?", "answer": ""}, "column answer is empty"),
        ("deepcoder", {"problem": "a", "tests": "x"}, "column tests is no JSON"),
        ("deepcoder", {"problem": "a", "tests": '{"inputs": ["1"], "outputs": []}'}, "lists of the same length"),
        ("deepcoder", {"problem": "a", "tests": "[]"}, "column tests has no case"),
        ("deepcoder", {"problem": "a", "tests": json.dumps([*STDIN, *CALLED])}, "cases of several types"),
        ("deepcoder", {"problem": "a", "tests": json.dumps(CALLED)}, "call a function that neither they nor"),
        ("livecodebench", {"question_content": "a", "public_test_cases": "[]"}, "_test_cases has no case"),
        (
            "livecodebench",
            {"question_content": "a", "public_test_cases": "[]", "private_test_cases": "!"},
            "neither JSON nor what is made of it",
        ),
        ("hotpotqa", {"question": "a?", "answer": None}, "no column answer"),
        ("nq", {"question": "a?", "answer": []}, "the answers are []: a list of texts is needed"),
        ("aime", {"problem": "a?", "answer": [1]}, "column answer is [1]: a number or a text is needed"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_file_and_line(
    tmp_path: Path, dataset: str, row: dict[str, Any], message: str
) -> None:
    file = written(tmp_path / "rows.jsonl", [row])
    result, prompts = convert(dataset, file)
    assert (result.exit_code, prompts) == (1, [])
    assert f"{file}, line 1: " in result.stderr
    assert message in result.stderr
    assert "cannot be used: 1" in result.stdout


def test_a_pickle_is_read_and_never_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "harmed",)

    hostile = base64.b64encode(zlib.compress(pickle.dumps(Harm()))).decode()
    row = {"question_content": "a", "public_test_cases": json.dumps(STDIN), "private_test_cases": hostile}
    result, _ = convert("livecodebench", written(tmp_path / "rows.jsonl", [row]))
    assert result.exit_code == 1
    assert "column private_test_cases holds" in result.stderr
    assert not (tmp_path / "harmed").exists()


def test_lines_that_are_no_rows_are_counted_and_the_others_are_written(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_bytes(b'{"question": "a?", "answer": "#### 1"}\n\n[1]\n{"question"\n\xff\n')
    result, prompts = convert("gsm8k", file)
    assert (result.exit_code, len(prompts)) == (1, 1)
    assert f"{file}, line 3: a list, not an object" in result.stderr
    assert f"{file}, line 4: no JSON" in result.stderr
    assert f"{file}, line 5: no JSON" in result.stderr
    assert "rows read: 4" in result.stdout


def test_many_bad_rows_are_counted_and_not_all_named(tmp_path: Path) -> None:
    result, _ = convert("gsm8k", written(tmp_path / "rows.jsonl", [{"question": "a?"}] * 50))
    assert "… and 30 more rows that cannot be used" in result.stderr
    assert "cannot be used: 50" in result.stdout


def test_a_problem_is_written_once_however_it_is_spaced_but_signs_count(tmp_path: Path) -> None:
    asked = ["What is  2 + 2?", "what is 2+2", "What is 2 - 2?", "What is 2.2?", "What is 2, 2?", "...", "?"]
    rows = [{"problem": problem, "answer": "4"} for problem in asked]
    result, prompts = convert("deepscaler", written(tmp_path / "rows.json", rows))
    assert "repeated (equal but for case, space and punctuation): 1" in result.stdout
    assert [prompt["prompt"] for prompt in prompts] == [asked[0], *asked[2:]]


def test_what_is_held_out_or_nearly_so_is_left_out_and_named(tmp_path: Path) -> None:
    words = [f"word{number}" for number in range(40)]
    held_out = tmp_path / "held-out.jsonl"
    held_out.write_text(json.dumps({"prompt": " ".join(words)}) + "\n" + json.dumps({"prompt": "Short one?"}) + "\n")
    problems = {
        "the same": " ".join(words).upper(),
        "the same in other words at its end": " ".join([*words[:35], "and", "so", "on"]),
        "another with a piece of it": " ".join([*words[:15], *(f"other{number}" for number in range(40))]),
        "short and the same": "short one",
        "short and another": "short two",
    }
    file = written(tmp_path / "rows.json", [{"problem": text, "answer": "4"} for text in problems.values()])
    result, prompts = convert("deepscaler", file, held_out=(held_out,))
    kept = [name for name, text in problems.items() if text in [prompt["prompt"] for prompt in prompts]]
    assert kept == ["another with a piece of it", "short and another"]
    assert f"{file}, row 2: left out: like a held-out prompt" in result.stderr
    assert "like a held-out prompt (equal, or half of all runs of 13 words): 3" in result.stdout
    assert result.exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.csv", b"a,b", "its name ends with none of .jsonl, .json, .parquet"),
        ("rows.json", b"nothing", "no JSON"),
        ("rows.parquet", b"nothing", "no Parquet"),
    ],
)
def test_a_file_that_cannot_be_read_writes_nothing(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    result, prompts = convert("gsm8k", file)
    assert (result.exit_code, prompts) == (2, [])
    assert message in result.stderr


def test_a_held_out_set_that_was_not_converted_is_refused(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", [{"question": "a?", "answer": "#### 1"}])
    result, _ = convert("gsm8k", file, held_out=(file,))
    assert result.exit_code == 2
    assert "no text in a column `prompt`: convert the held-out set first" in result.stderr


def test_the_summary_says_what_to_check_by(tmp_path: Path) -> None:
    file = written(tmp_path / "rows.jsonl", [{"question": "a?", "answer": "#### 1"}])
    result, _ = convert("gsm8k", file)
    assert "to be checked by: check: numeric" in result.stdout
    assert "prompts.jsonl: 1" in result.stdout
