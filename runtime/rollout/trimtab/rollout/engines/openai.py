"""The client of any OpenAI-compatible endpoint: completions of token ids, with a deadline and a typed error each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from pydantic import SecretStr

from trimtab.rollout.engines.contract import EngineRefused, Generated, Progress, SamplingSettings
from trimtab.rollout.engines.endpoint import PROBE_TIMEOUT_S, EndpointSession, EngineUnauthorized
from trimtab.rollout.engines.openai_responses import read_completion
from trimtab.rollout.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)
# Extensions of vLLM and SGLang that make an answer exact. Others ignore them, or refuse them by name.
_EXACT = ("return_token_ids", "return_tokens_as_token_ids")


class Call(Protocol):
    """A request to an endpoint."""

    async def __call__(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float
    ) -> dict[str, Any]: ...


async def check_model(call: Call, model: str, *, field: str) -> None:
    """Raises an EngineError unless the endpoint answers, takes our key and has the model."""
    answer = await call("GET", "/models", None, timeout_s=PROBE_TIMEOUT_S)
    cards = answer.get("data")
    names = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    if model not in names:
        known = ", ".join(map(str, names[:10])) or "none"
        raise EngineRefused(f"{field}.model: the endpoint does not have {model!r}; it has {known}")


class OpenAIClient(EndpointSession):
    """Asked with token ids."""

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
        super().__init__(
            url, model=model, api_key=api_key, field="engine", request_timeout_s=request_timeout_s, clock=clock
        )
        self._tokenizer = tokenizer
        self._exact = dict.fromkeys(_EXACT, True)

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
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

    async def check(self) -> None:
        """Raises an EngineError unless the endpoint answers, takes our key and has the model."""
        await check_model(self._call, self._model, field="engine")

    def _forgo_extension(self, asked: dict[str, bool], refused: EngineRefused) -> None:
        """Ask without an extension that was refused by name, from now on; raise what is about anything else."""
        named = [field for field in asked if field in str(refused)]
        if not named or isinstance(refused, EngineUnauthorized):
            raise refused
        # Requests that were sent side by side all come here, with what the first has taken out already.
        for field in named:
            if self._exact.pop(field, None):
                _log.info("endpoint_lacks_extension", field=field, why=str(refused))
