"""Asks an endpoint of the user's for passages, in the protocol of Search-R1's retrieval server, which many speak."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import aiohttp

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.search.passages import MAX_QUERY_CHARS, Passage, SearchFailed
from trimtab.rollout.user_endpoint import AnswerTooLarge, check_url, read_body

_MAX_ANSWER_BYTES = 4 << 20
_AT_ONCE = 64
_ATTEMPTS = 5
_BACKOFF = FullJitter(base_s=0.2, cap_s=5.0)
_SERVER_TROUBLE = 500
_TRY_AGAIN = (408, 429)


class _TryAgain(Exception):
    """Something that may pass."""


class SearchEndpoint:
    """POST of `{"queries": [...], "topk": n, "return_scores": true}`; it answers `{"result": [[...]]}` with a list for
    each query, of documents or of `{"document", "score"}`. What may pass is tried again, what is no answer is not.
    """

    def __init__(
        self,
        url: str,
        *,
        results: int,
        timeout_s: float,
        backoff: FullJitter = _BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`timeout_s` is for each attempt."""
        self._url = check_url(url, name="search.url")
        self._results = results
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._backoff = backoff
        self._sleep = sleep
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def find(self, query: str, /) -> Sequence[Passage]:
        body = {"queries": [query[:MAX_QUERY_CHARS]], "topk": self._results, "return_scores": True}
        trouble = ""
        for attempt in range(_ATTEMPTS):
            try:
                async with self._free:
                    return self._passages(await self._asked(body))
            except _TryAgain as error:
                trouble = str(error)
            if attempt + 1 < _ATTEMPTS:
                await self._sleep(self._backoff.delay_s(attempt))
        raise SearchFailed(f"{self._url}: {_ATTEMPTS} attempts, the last: {trouble}")

    async def _asked(self, body: dict[str, Any]) -> object:
        try:
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as client,
                client.post(self._url, json=body, allow_redirects=False) as response,
            ):
                text = await read_body(response, most=_MAX_ANSWER_BYTES)
                status = response.status
        except AnswerTooLarge as error:
            raise SearchFailed(f"{self._url} answered {error}: see search.results") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _TryAgain(f"{type(error).__name__}: {error}") from None
        if status >= _SERVER_TROUBLE or status in _TRY_AGAIN:
            raise _TryAgain(f"it answered {status}: {text[:200].decode(errors='replace')}")
        if status != 200:
            raise SearchFailed(f"{self._url} answered {status}: {text[:500].decode(errors='replace')}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise SearchFailed(f"{self._url} answered no JSON: {error}") from None

    def _passages(self, answer: object) -> list[Passage]:
        found = answer.get("result") if isinstance(answer, dict) else None
        if not isinstance(found, list) or len(found) != 1 or not isinstance(found[0], list):
            raise SearchFailed(
                f'{self._url} answered {answer!r:.200}: answer {{"result": [[…]]}}, a list for each query'
            )
        try:
            return [_passage(each) for each in found[0][: self._results]]
        except ValueError as error:
            raise SearchFailed(f"{self._url}: a document: {error}") from None


def _passage(found: object) -> Passage:
    document = found.get("document", found) if isinstance(found, dict) else found
    if not isinstance(document, dict):
        raise ValueError(f"{document!r:.200} is no object")  # noqa: TRY004
    return Passage.of(document)
