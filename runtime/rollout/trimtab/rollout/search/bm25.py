"""Searches a corpus on disk by BM25, in the worker's memory. The index is made once, when the worker starts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import bm25s

from trimtab.fabric.daemon_thread import in_daemon_thread
from trimtab.rollout.search.passages import MAX_QUERY_CHARS, Passage, SearchFailed

_WORDS = r"(?u)\b\w+\b"
# A query over millions of passages takes a tenth of a second of a processor, which the event loop must not wait for.
_AT_ONCE = 4
_TIMEOUT_S = 60.0


class Bm25Search:
    """Words are compared in small letters and as they are written: no stems, no list of words to leave out, as those
    are of one language.
    """

    def __init__(self, passages: Sequence[Passage], *, results: int) -> None:
        self._passages = passages
        self._results = min(results, len(passages))
        self._index = bm25s.BM25()
        self._index.index(_words([f"{each.title} {each.text}" for each in passages]), show_progress=False)
        self._free_threads = asyncio.Semaphore(_AT_ONCE)

    async def find(self, query: str, /) -> Sequence[Passage]:
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._free_threads:
                return await in_daemon_thread(lambda: self._best(query[:MAX_QUERY_CHARS]), name="search")
        except TimeoutError:
            raise SearchFailed(f"searching the corpus took over {_TIMEOUT_S:g} s: {query[:200]!r}") from None

    def _best(self, query: str) -> list[Passage]:
        (words,) = _words([query])
        if not words:
            return []
        numbers, scores = self._index.retrieve([words], k=self._results, show_progress=False)
        # It fills up with what has no word of the query.
        return [self._passages[number] for number, score in zip(numbers[0], scores[0], strict=True) if score > 0]


def read_corpus(path: Path) -> list[Passage]:
    """A passage in each line, as JSON. Raises ValueError, which names the line."""
    passages = []
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    passages.append(_passage(line, place=f"{path}, line {number}"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"search.corpus {path} cannot be read: {error}") from error
    if not any(_words([f"{each.title} {each.text}"])[0] for each in passages):
        raise ValueError(f'search.corpus {path} has no words: a line is one passage, such as {{"text": "…"}}')
    return passages


def _passage(line: str, *, place: str) -> Passage:
    try:
        document = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{place}: no JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{place}: a {type(document).__name__}: an object with `text` is needed")  # noqa: TRY004
    try:
        return Passage.of(document)
    except ValueError as error:
        raise ValueError(f"{place}: {error}") from error


def _words(texts: Sequence[str]) -> list[list[str]]:
    words: list[list[str]] = bm25s.tokenize(
        list(texts), stopwords=None, token_pattern=_WORDS, show_progress=False, return_ids=False
    )
    return words
