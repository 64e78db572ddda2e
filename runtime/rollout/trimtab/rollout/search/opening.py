"""The search that a manifest's `search` asks for: a corpus, or an endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trimtab.rollout.search.bm25 import Bm25Search, read_corpus
from trimtab.rollout.search.endpoint import SearchEndpoint
from trimtab.rollout.search.passages import Search

_RESULTS = 3
_TIMEOUT_S = 30.0
_KNOWN = ("corpus", "url", "results", "timeout_s")


def open_search(given: Mapping[str, Any], *, folder: Path) -> Search:
    """`{corpus: FILE, results: 3}`, FILE within `folder` unless its path is absolute, or `{url: …, results: 3,
    timeout_s: 30}`. Raises ValueError, which names what is wrong.
    """
    unknown = sorted(set(given) - set(_KNOWN))
    if unknown:
        raise ValueError(f"search.{unknown[0]} is unknown; there are {', '.join(_KNOWN)}")
    results = given.get("results", _RESULTS)
    if not isinstance(results, int) or isinstance(results, bool) or not 1 <= results <= 100:
        raise ValueError(f"search.results is {results!r:.200}: a number from 1 to 100")
    corpus, url = given.get("corpus"), given.get("url")
    if (corpus is None) == (url is None):
        raise ValueError("search needs corpus, a file with a passage in each line, or url, and not both")
    if corpus is not None:
        if "timeout_s" in given:
            raise ValueError("search.timeout_s is for search.url")
        return Bm25Search(read_corpus(folder / str(corpus)), results=results)
    timeout_s = given.get("timeout_s", _TIMEOUT_S)
    if not isinstance(timeout_s, int | float) or timeout_s <= 0:
        raise ValueError(f"search.timeout_s is {timeout_s!r:.200}: seconds, more than 0")
    return SearchEndpoint(str(url), results=results, timeout_s=float(timeout_s))
