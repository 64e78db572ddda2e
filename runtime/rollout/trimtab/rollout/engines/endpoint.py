"""The HTTP side of somebody else's API: a key that stays secret, a Retry-After that is kept to, typed errors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp
from pydantic import SecretStr

from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineNotFound,
    EngineOverloaded,
    EngineRefused,
    EngineUnavailable,
)
from trimtab.rollout.engines.session import EngineSession

PROBE_TIMEOUT_S = 10.0
_MAX_TEXT = 500
# An endpoint that asks for more patience than this is asked again all the same.
_MAX_RETRY_AFTER_S = 60.0
# Anthropic's word for a server that has too much to do.
_OVERLOADED = 529


class EngineUnauthorized(EngineRefused):
    """The endpoint does not accept our key."""

    kind = "engine-unauthorized"


class EndpointSession(EngineSession):
    """One endpoint and one of its models. `url` is the endpoint's base, with or without the final /v1; `field` is what
    the manifest calls it. It is asked for whole answers: nobody is told of a part of one.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: SecretStr | None,
        field: str,
        request_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._model = model
        self._request_timeout_s = request_timeout_s
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._api_key = api_key
        self._field = field
        self._clock = clock
        self._quiet_until = clock()

    async def load(self, *, timeout_s: float) -> EngineLoad:
        """An endpoint does not say. What it turns away is all there is to go by."""
        return EngineLoad(running=0, waiting=0, token_usage=0.0)

    async def _call(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float
    ) -> dict[str, Any]:
        await self._wait_as_told()
        answer = await self._exchange(
            method,
            self._url + path,
            called=f"/v1{path}",
            refused=lambda response, text: self._refusal(path, response, text),
            timeout_s=timeout_s,
            json=body,
            headers=self._headers(),
        )
        return answer.document()

    def _headers(self) -> dict[str, str]:
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key.get_secret_value()}"}

    async def _wait_as_told(self) -> None:
        """All requests keep to a Retry-After that one of them was given: it is about the key, not the request."""
        await asyncio.sleep(max(0.0, self._quiet_until - self._clock()))

    def _note_retry_after(self, response: aiohttp.ClientResponse) -> None:
        """In seconds. As a date it is ignored: the clocks of two machines would have to agree."""
        told = response.headers.get("Retry-After", "")
        if response.status in (429, 503, _OVERLOADED) and told.isdecimal():
            wait_s = min(float(told), _MAX_RETRY_AFTER_S)
            self._quiet_until = max(self._quiet_until, self._clock() + wait_s)

    def _refusal(self, path: str, response: aiohttp.ClientResponse, text: str) -> EngineError:
        self._note_retry_after(response)
        status = response.status
        if status in (401, 403):
            # What such an answer says may quote a part of the key.
            return EngineUnauthorized(
                f"/v1{path}: {status}, the endpoint refuses the key: see {self._field}.apiKeySecret"
            )
        why = f"/v1{path}: {status} {self._shown(text)[:_MAX_TEXT]}"
        if status == 404:
            return EngineNotFound(why)
        if status in (429, _OVERLOADED):
            return EngineOverloaded(why)
        return EngineUnavailable(why) if status >= 500 or status == 408 else EngineRefused(why)

    def _shown(self, text: str) -> str:
        return text if self._api_key is None else text.replace(self._api_key.get_secret_value(), "***")
