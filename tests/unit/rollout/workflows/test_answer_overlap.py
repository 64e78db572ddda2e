"""Short answers are compared as SQuAD's evaluation compares them."""

from __future__ import annotations

import pytest

from trimtab.rollout.workflows.answer_overlap import exact_match, f1, normalised


@pytest.mark.parametrize(
    ("answer", "normal"),
    [
        ("The  Eiffel Tower.", "eiffel tower"),
        ("an apple, a day", "apple day"),
        ("theatre", "theatre"),
        ("O'Neill-Smith", "oneillsmith"),
        ("The", ""),
    ],
)
def test_case_punctuation_articles_and_spaces_do_not_count(answer: str, normal: str) -> None:
    assert normalised(answer) == normal


@pytest.mark.parametrize(
    ("answer", "known", "exact", "overlap"),
    [
        ("the Rome", ["rome"], 1.0, 1.0),
        ("Rome, Italy", ["Rome"], 0.0, 2 / 3),
        ("Oslo", ["Rome", "oslo!"], 1.0, 1.0),
        ("big red dog", ["red cat", "small red dog"], 0.0, 2 / 3),
        ("dog dog", ["dog"], 0.0, 2 / 3),
        ("Rome", ["Oslo"], 0.0, 0.0),
        ("", ["Oslo"], 0.0, 0.0),
        ("the", ["a"], 1.0, 1.0),
        ("Oslo", [], 0.0, 0.0),
    ],
)
def test_exact_match_and_f1(answer: str, known: list[str], exact: float, overlap: float) -> None:
    assert exact_match(answer, known) == exact
    assert f1(answer, known) == pytest.approx(overlap)
