"""When two prompts are the same, or so alike that who was trained on the one knows the other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import xxhash

WORDS = 13
"""The length of runs of words that are compared, as is usual since GPT-3."""
_SHARE = 0.5
# Signs stay, as 2 + 2 is not 2 - 2, and so do marks within a number.
_WORD = re.compile(r"\w+(?:[.,]\w+)*|[^\w\s.,;:!?'\"`]")


def normalised(text: str) -> str:
    """Small letters, one space between words and signs, no punctuation. Where nothing remains, the text itself: a
    prompt of punctuation alone is like no other.
    """
    return " ".join(_WORD.findall(text.casefold())) or text


class HeldOut:
    """Prompts that must not be trained on. It keeps eight bytes for each run of words."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._texts: set[int] = set()
        self._runs: set[int] = set()
        for prompt in prompts:
            text = normalised(prompt)
            self._texts.add(_hash(text))
            self._runs.update(_runs(text))

    def resembles(self, text: str) -> bool:
        """Whether a normalised text is one of them, or half of its runs of words are in them. One that is too short for
        a run is compared as a whole.
        """
        if _hash(text) in self._texts:
            return True
        runs = list(_runs(text))
        return bool(runs) and sum(run in self._runs for run in runs) >= _SHARE * len(runs)


def _runs(text: str) -> Iterator[int]:
    words = text.split()
    for start in range(len(words) - WORDS + 1):
        yield _hash(" ".join(words[start : start + WORDS]))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
