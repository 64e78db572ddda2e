"""Each task's own solution passes its tests: a task that nobody can pass teaches nothing."""

import json
from pathlib import Path
from typing import Any


def tasks() -> list[dict[str, Any]]:
    folder = Path(__file__).parent
    return [json.loads(line) for file in ("train.jsonl", "held-out.jsonl") for line in (folder / file).open()]


def test_the_reference_of_each_task_passes_its_tests() -> None:
    for task in tasks():
        names: dict[str, Any] = {}
        exec(task["reference"], names)  # noqa: S102 - our own solutions
        tests = task["tests"]
        assert [names[tests["fn_name"]](*given) for given in tests["inputs"]] == tests["outputs"], task["prompt"]


def test_no_task_is_both_trained_on_and_held_out() -> None:
    prompts = [task["prompt"] for task in tasks()]
    assert len(set(prompts)) == len(prompts)
