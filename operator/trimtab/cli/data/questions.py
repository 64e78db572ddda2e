"""Sets of questions whose answers are a few words, for who searches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trimtab.cli.data.rows import BadRow, text_of, value_of


def hotpotqa(row: Mapping[str, Any]) -> dict[str, Any]:
    """`question` and `answer`; the passages it was made from are not in the prompt."""
    return {"prompt": text_of(row, "question"), "answer": text_of(row, "answer")}


def natural_questions(row: Mapping[str, Any]) -> dict[str, Any]:
    """NQ-Open's `question` and `answer`, a list; or `golden_answers`, as Search-R1's copy calls it."""
    answers = value_of(row, "answer", "answers", "golden_answers")
    listed = [answers] if isinstance(answers, str) else answers
    if not isinstance(listed, list) or not listed or not all(isinstance(one, str) and one.strip() for one in listed):
        raise BadRow(f"the answers are {answers!r:.80}: a list of texts is needed")
    question = text_of(row, "question")
    return {"prompt": question if question.endswith("?") else f"{question}?", "answer": listed}
