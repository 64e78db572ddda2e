"""Prompts that a class of the user's makes, found by its entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dataflow.prompt_sources import ids_of, order_of, prompts_of, write_jsonl
from trimtab.dataflow.prompts.prompt import PromptSourceError
from trimtab.fabric.pod import JobMisconfigured

CODE = '''
import itertools

class Sums:
    """Without end."""
    def __init__(self, *, largest=10):
        self.largest = largest
    def prompt(self, number):
        first, second = divmod(number, self.largest)
        return {"prompt": f"{first}+{second}=", "answer": first + second}

class Few(Sums):
    def __len__(self):
        return 5

class None_(Sums):
    def __len__(self):
        return 0

class Negative(Sums):
    def __len__(self):
        return -1

class Random(Sums):
    draws = itertools.count()
    def prompt(self, number):
        return {"prompt": str(next(self.draws))}

class Late(Sums):
    def prompt(self, number):
        return {"prompt": "x"} if number < 3 else 1 / 0

class Unfit(Few):
    def prompt(self, number):
        return {"prompt": "x", "more": {1} if number == 4 else []}

class Text(Sums):
    def prompt(self, number):
        return "x"

class Nothing:
    pass

not_a_class = 1
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "made_up_prompts.py").write_text(CODE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    sys.modules.pop("made_up_prompts", None)


def made(name: str, **args: Any) -> dict[str, Any]:
    return {"name": "made", "generator": {"entrypoint": f"made_up_prompts:{name}", "args": args}}


async def test_a_generator_without_end_gives_prompt_n_for_any_n(folder: Path) -> None:
    order = await order_of(folder, made("Sums", largest=7), shuffle=True)
    assert ids_of(order, 3) == ["made-0", "made-1", "made-2"]
    assert order.at(10**12).content["prompt"] == f"{10**12 // 7}+{10**12 % 7}="


async def test_a_generator_with_a_length_is_shuffled_and_has_epochs(folder: Path) -> None:
    order = await order_of(folder, made("Few"), shuffle=True, epochs=3)
    assert order.total == 15
    epochs = [[order.at(position).prompt_id for position in range(start, start + 5)] for start in (0, 5, 10)]
    assert all(sorted(epoch) == [f"made-{number}" for number in range(5)] for epoch in epochs)
    assert any(epoch != sorted(epoch) for epoch in epochs)


async def test_epochs_of_files_end_a_run_that_a_generator_would_not(folder: Path) -> None:
    write_jsonl(folder / "p.jsonl", ["a", "b"])
    order = await order_of(folder, {"name": "files", "jsonl": {"uri": "p.jsonl"}}, made("Sums"), epochs=1)
    assert order.total in (3, 4)
    assert {"a", "b"} < set(prompts_of(order, order.total))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("None_", r"data.prompts\[made\] holds no prompt"),
        ("Negative", "made_up_prompts:Negative, __len__\\(\\) raised ValueError"),
        ("Random", "made_up_prompts:Random: prompt\\(0\\) is not the same twice"),
        ("Unfit", "made_up_prompts:Unfit, prompt\\(4\\): .*set values cannot be sent"),
        ("Text", "made_up_prompts:Text, prompt\\(0\\): expected an object with the key 'prompt'"),
        ("Nothing", "made_up_prompts:Nothing has no `def prompt"),
    ],
)
async def test_what_is_wrong_with_a_generator_is_told_when_the_job_starts(folder: Path, name: str, why: str) -> None:
    with pytest.raises(PromptSourceError, match=why):
        await order_of(folder, made(name))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        (made("Missing"), r"data.prompts\[made\].generator.entrypoint 'made_up_prompts:Missing' cannot be loaded"),
        (made("Sums", smallest=1), r"data.prompts\[made\].generator.args do not fit made_up_prompts:Sums"),
        (made("not_a_class"), r"data.prompts\[made\].generator.args do not fit made_up_prompts:not_a_class"),
        ({"name": "made", "generator": {"entrypoint": "no_such_module:X"}}, "cannot be loaded: No module named"),
    ],
    ids=["no class", "wrong args", "not a class", "no module"],
)
async def test_a_generator_that_cannot_be_made_is_named(folder: Path, source: dict[str, Any], why: str) -> None:
    with pytest.raises(JobMisconfigured, match=why):
        await order_of(folder, source)


async def test_an_error_in_the_middle_of_the_run_names_the_class_and_the_number(folder: Path) -> None:
    order = await order_of(folder, made("Late"))
    assert prompts_of(order, 3) == ["x"] * 3
    with pytest.raises(PromptSourceError, match="made_up_prompts:Late, prompt\\(3\\) raised ZeroDivisionError"):
        order.at(3)
