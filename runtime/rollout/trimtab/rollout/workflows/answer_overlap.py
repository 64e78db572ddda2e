"""Exact match and F1 of short answers, normalised as SQuAD's evaluation does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalised(answer: str) -> str:
    """Small letters, no punctuation, no English articles, one space between words."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, known: Iterable[str]) -> float:
    """Whether it is one of the known answers."""
    return float(any(normalised(answer) == normalised(one) for one in known))


def f1(answer: str, known: Iterable[str]) -> float:
    """The best overlap with a known answer: the harmonic mean of the shares of its words and of theirs."""
    return max((_f1(normalised(answer).split(), normalised(one).split()) for one in known), default=0.0)


def _f1(mine: list[str], theirs: list[str]) -> float:
    if not mine or not theirs:
        return float(mine == theirs)
    common = (Counter(mine) & Counter(theirs)).total()
    if common == 0:
        return 0.0
    precision, recall = common / len(mine), common / len(theirs)
    return 2 * precision * recall / (precision + recall)
