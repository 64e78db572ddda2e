"""Sets of mathematics: a problem, and the answer that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trimtab.cli.data.rows import BadRow, number_text, text_of, value_of

_FINAL = re.compile(r"####\s*(.+)")
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?")
# What DAPO-Math-17k wraps around every problem. Workflows have words of their own for it.
_DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
_DAPO_AFTER = re.compile(r"\n\nRemember to put your answer on its own line after \"Answer:\"\.\s*\Z")


def gsm8k(row: Mapping[str, Any]) -> dict[str, Any]:
    """`question`, and `answer`: the working, with the number behind ####."""
    working = text_of(row, "answer")
    final = _FINAL.findall(working)
    if not final:
        raise BadRow("column answer has no #### with a number behind it")
    number = final[-1].strip().removeprefix("$").rstrip(".")
    if not _NUMBER.fullmatch(number):
        raise BadRow(f"column answer: {final[-1]!r:.80} behind #### is no number")
    return {"prompt": text_of(row, "question"), "answer": number.replace(",", "")}


def math_set(row: Mapping[str, Any]) -> dict[str, Any]:
    """`problem`, and `answer`, as in MATH-500, or the last \\boxed{} of `solution`, as in MATH."""
    answer = row.get("answer")
    known = number_text(answer, column="answer") if answer is not None else boxed(text_of(row, "solution"))
    return {"prompt": text_of(row, "problem"), "answer": known}


def dapo_math(row: Mapping[str, Any]) -> dict[str, Any]:
    """`prompt`, a list of messages, and `reward_model.ground_truth`; or the processed form with `prompt` as text and
    `solution`.
    """
    prompt = value_of(row, "prompt")
    if isinstance(prompt, list):
        said = [one.get("content") for one in prompt if isinstance(one, Mapping) and one.get("role") == "user"]
        if len(said) != 1 or not isinstance(said[0], str):
            raise BadRow(f"column prompt has {len(said)} messages of a user: one is needed")
        prompt = said[0]
    if not isinstance(prompt, str):
        raise BadRow(f"column prompt is {prompt!r:.80}: messages, or a text")
    problem = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", prompt)).strip()
    if not problem:
        raise BadRow("column prompt has no problem in it")
    rewarded = row.get("reward_model")
    known = rewarded.get("ground_truth") if isinstance(rewarded, Mapping) else row.get("solution")
    return {"prompt": problem, "answer": number_text(known, column="reward_model.ground_truth")}


def deepscaler(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt": text_of(row, "problem"), "answer": number_text(value_of(row, "answer"), column="answer")}


def competition(row: Mapping[str, Any]) -> dict[str, Any]:
    """AIME and AMC, whose columns are written with small or large letters."""
    answer = value_of(row, "answer", "Answer")
    return {
        "prompt": text_of(row, "problem", "Problem", "question", "Question"),
        "answer": number_text(answer, column="answer"),
    }


def boxed(solution: str) -> str:
    """What is within the last \\boxed{}, braces within it included. Raises BadRow."""
    start = max(solution.rfind("\\boxed{"), solution.rfind("\\fbox{"))
    if start < 0:
        # As in `\boxed 2`.
        bare = re.findall(r"\\boxed\s+(\S+?)[.$]*(?:\s|\Z)", solution)
        if not bare:
            raise BadRow("column solution has no \\boxed{} answer")
        return str(bare[-1])
    inside = start = solution.index("{", start) + 1
    depth = 1
    for place in range(inside, len(solution)):
        depth += {"{": 1, "}": -1}.get(solution[place], 0)
        if depth == 0:
            answer = solution[start:place].strip()
            if not answer:
                break
            return answer
    raise BadRow("column solution: its last \\boxed{} is empty, or never closed")
