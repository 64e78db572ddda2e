"""The client of any OpenAI-compatible endpoint: completions of token ids, with a deadline and a typed error each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import structlog
from pydantic import SecretStr

from trimtab.fabric.tls import TlsUnusable
from trimtab.rollout.engines.client import EngineSession
from trimtab.rollout.engines.contract import (
    EngineError,
    EngineLoad,
    EngineOverloaded,
    EngineRefused,
    EngineTimeout,
    EngineUnavailable,
    Generated,
    SamplingSettings,
)
from trimtab.rollout.engines.openai_responses import read_completion
from trimtab.rollout.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)
_MAX_TEXT = 500
_PROBE_TIMEOUT_S = 10.0
# An endpoint that asks for more patience than this is asked again all the same.
_MAX_RETRY_AFTER_S = 60.0
# Extensions of vLLM and SGLang that make an answer exact. Others ignore them, or refuse them by name.
_EXACT = ("return_token_ids", "return_tokens_as_token_ids")


class EngineUnauthorized(EngineRefused):
    """The endpoint does not accept our key."""

    kind = "engine-unauthorized"


class OpenAIClient(EngineSession):
    """One endpoint and one of its models. `url` is its base, with or without the final /v1."""

    def __init__(
        self,
        url: str,
        *,
        model: str,
        api_key: SecretStr | None,
        tokenizer: Tokenizer,
        request_timeout_s: float,
        clock: Callable[[], float],
    ) -> None:
        super().__init__()
        self._url = url.rstrip("/").removesuffix("/v1") + "/v1"
        self._model = model
        self._api_key = api_key
        self._tokenizer = tokenizer
        self._request_timeout_s = request_timeout_s
        self._clock = clock
        self._exact = dict.fromkeys(_EXACT, True)
        self._quiet_until = clock()

    async def generate(
        self, input_ids: Sequence[int], settings: SamplingSettings, *, request_id: str, weight_version: str
    ) -> Generated:
        """Its weights never change, so whatever `weight_version` asks for, the answer is of version 0."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": list(input_ids),
            "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
            "top_p": settings.top_p,
            "logprobs": 1,
        }
        if settings.seed is not None:
            body["seed"] = settings.seed
        if settings.stop:
            body["stop"] = list(settings.stop)
        # Not OpenAI's, from here to the loop: an endpoint that does not have it refuses, and must not sample from
        # something else instead.
        if settings.top_k > 0:
            body["top_k"] = settings.top_k
        if settings.min_p > 0:
            body["min_p"] = settings.min_p
        if settings.stop_token_ids:
            body["stop_token_ids"] = list(settings.stop_token_ids)
        if settings.ignore_eos:
            body["ignore_eos"] = True
        while True:
            asked = dict(self._exact)
            try:
                answer = await self._call("POST", "/completions", body | asked, timeout_s=self._request_timeout_s)
            except EngineRefused as refused:
                self._forgo_extension(asked, refused)
            else:
                return read_completion(answer, self._tokenizer)

    async def load(self, *, timeout_s: float) -> EngineLoad:
        """An endpoint does not say. What it turns away is all there is to go by."""
        return EngineLoad(running=0, waiting=0, token_usage=0.0)

    async def check(self) -> None:
        """Raises an EngineError unless the endpoint answers, takes our key and has the model."""
        answer = await self._call("GET", "/models", None, timeout_s=_PROBE_TIMEOUT_S)
        cards = answer.get("data")
        names = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
        if self._model not in names:
            known = ", ".join(map(str, names[:10])) or "none"
            raise EngineRefused(f"engine.model: the endpoint does not have {self._model!r}; it has {known}")

    def _forgo_extension(self, asked: dict[str, bool], refused: EngineRefused) -> None:
        """Ask without an extension that was refused by name, from now on; raise what is about anything else."""
        named = [field for field in asked if field in str(refused)]
        if not named or isinstance(refused, EngineUnauthorized):
            raise refused
        # Requests that were sent side by side all come here, with what the first has taken out already.
        for field in named:
            if self._exact.pop(field, None):
                _log.info("endpoint_lacks_extension", field=field, why=str(refused))

    async def _call(self, method: str, path: str, body: dict[str, Any] | None, *, timeout_s: float) -> dict[str, Any]:
        await self._wait_as_told()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._session.request(
                    method, self._url + path, json=body, headers=self._headers(), ssl=self._trust(self._url)
                ) as response,
            ):
                if response.status >= 400:
                    self._note_retry_after(response)
                    raise self._refusal(path, response.status, await response.text())
                answer = await response.json(content_type=None)
        except TimeoutError:
            raise EngineTimeout(f"/v1{path} did not answer within {timeout_s:.3g} s") from None
        except (aiohttp.ClientError, TlsUnusable) as error:
            raise EngineUnavailable(f"/v1{path}: {self._without_key(str(error)) or type(error).__name__}") from None
        except ValueError as error:
            raise EngineError(f"/v1{path} did not answer with JSON: {type(error).__name__}") from None
        if not isinstance(answer, dict):
            raise EngineError(f"/v1{path} answered with a {type(answer).__name__}")
        return answer

    def _headers(self) -> dict[str, str]:
        return {} if self._api_key is None else {"Authorization": f"Bearer {self._api_key.get_secret_value()}"}

    async def _wait_as_told(self) -> None:
        """All requests keep to a Retry-After that one of them was given: it is about the key, not the request."""
        await asyncio.sleep(max(0.0, self._quiet_until - self._clock()))

    def _note_retry_after(self, response: aiohttp.ClientResponse) -> None:
        """In seconds. As a date it is ignored: the clocks of two machines would have to agree."""
        told = response.headers.get("Retry-After", "")
        if response.status in (429, 503) and told.isdecimal():
            wait_s = min(float(told), _MAX_RETRY_AFTER_S)
            self._quiet_until = max(self._quiet_until, self._clock() + wait_s)

    def _refusal(self, path: str, status: int, text: str) -> EngineError:
        if status in (401, 403):
            # What such an answer says may quote a part of the key.
            return EngineUnauthorized(f"/v1{path}: {status}, the endpoint refuses the key: see engine.apiKeySecret")
        why = f"/v1{path}: {status} {self._without_key(text)[:_MAX_TEXT]}"
        if status == 429:
            return EngineOverloaded(why)
        return EngineUnavailable(why) if status >= 500 or status == 408 else EngineRefused(why)

    def _without_key(self, text: str) -> str:
        return text if self._api_key is None else text.replace(self._api_key.get_secret_value(), "***")
