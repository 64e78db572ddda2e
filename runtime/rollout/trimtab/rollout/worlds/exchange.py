"""Asks a server of worlds: JSON over HTTP, bounded, with a time limit. What may be repeated is repeated."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from trimtab.fabric.backoff import FullJitter
from trimtab.rollout.user_endpoint import AnswerTooLarge, check_url, read_body
from trimtab.rollout.workflows.errors import WorkflowError

_MAX_ANSWER_BYTES = 4 << 20
_ATTEMPTS = 6
_BACKOFF = FullJitter(base_s=0.5, cap_s=10.0)
# Not looked at: 406 is AgentBench's word for workers that are all busy.
_REFUSED = (406, 429, 503)
# Perhaps done all the same.
_UNKNOWN = (408, 502, 504)


class WorldServerFailed(WorkflowError):
    """The server did not do what it was asked. Nobody knows what the action would have been worth."""

    kind = "environment-failed"


class NoSuchPath(WorldServerFailed):
    """The server does not know of it."""


class _Refused(Exception):
    """It has done nothing of what it was asked."""


class _Unknown(Exception):
    """Nobody knows whether it has done it."""


class WorldServer:
    def __init__(
        self,
        url: str,
        *,
        timeout_s: float,
        backoff: FullJitter = _BACKOFF,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`timeout_s` is for each attempt."""
        if timeout_s <= 0:
            raise ValueError(f"timeout_s is {timeout_s}: more than 0")
        self._url = check_url(url, name="url").rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._backoff = backoff
        self._sleep = sleep

    async def ask(self, path: str, body: Mapping[str, Any], *, repeatable: bool) -> Any:
        """Its answer. What is not repeatable, such as an action, is asked again only where the server has refused to
        look at it. Raises WorldServerFailed.
        """
        trouble = ""
        for attempt in range(_ATTEMPTS):
            try:
                return await self._asked(path, body)
            except (_Refused, aiohttp.ClientConnectorError) as error:
                trouble = str(error)
            except (_Unknown, aiohttp.ClientError, TimeoutError) as error:
                trouble = f"{type(error).__name__}: {error}"
                if not repeatable:
                    raise WorldServerFailed(f"{self._url}{path}: {trouble}") from None
            if attempt + 1 < _ATTEMPTS:
                await self._sleep(self._backoff.delay_s(attempt))
        raise WorldServerFailed(f"{self._url}{path}: {_ATTEMPTS} attempts, the last: {trouble}")

    async def _asked(self, path: str, body: Mapping[str, Any]) -> Any:
        async with (
            aiohttp.ClientSession(timeout=self._timeout) as client,
            client.post(f"{self._url}{path}", json=body, allow_redirects=False) as response,
        ):
            try:
                text = await read_body(response, most=_MAX_ANSWER_BYTES)
            except AnswerTooLarge as error:
                raise WorldServerFailed(f"{self._url}{path} answered {error}") from None
            said = text[:500].decode(errors="replace")
            if response.status in _REFUSED:
                raise _Refused(f"it answered {response.status}: {said}")
            if response.status in _UNKNOWN:
                raise _Unknown(f"it answered {response.status}: {said}")
            if response.status in (404, 405):
                raise NoSuchPath(f"{self._url}{path} answered {response.status}: {said}")
            if response.status != 200:
                raise WorldServerFailed(f"{self._url}{path} answered {response.status}: {said}")
            try:
                return json.loads(text)
            except ValueError as error:
                raise WorldServerFailed(f"{self._url}{path} answered no JSON: {error}") from None
