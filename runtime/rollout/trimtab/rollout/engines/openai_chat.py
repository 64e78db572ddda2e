"""The client of POST /v1/chat/completions, which OpenAI and most others answer, for frozen policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trimtab.rollout.engines.contract import EngineError, EngineRefused, Generated, Progress, SamplingSettings
from trimtab.rollout.engines.endpoint import EndpointSession, EngineUnauthorized
from trimtab.rollout.engines.messages import answered, messages_of
from trimtab.rollout.engines.openai import check_model

_LIMITS = ("max_tokens", "max_completion_tokens")
"""The older name, which most know, and the one that OpenAI's reasoning models insist on."""


class OpenAIChatClient(EndpointSession):
    """Asked with messages."""

    _limit = _LIMITS[0]

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        body: dict[str, Any] = {"model": self._model, "messages": messages_of(input_ids)}
        # What is at its default is not said: some models take no other temperature.
        if settings.temperature != 1.0:
            body["temperature"] = settings.temperature
        if settings.top_p < 1.0:
            body["top_p"] = settings.top_p
        if settings.top_k > 0:
            body["top_k"] = settings.top_k
        if settings.min_p > 0:
            body["min_p"] = settings.min_p
        if settings.seed is not None:
            body["seed"] = settings.seed
        if settings.stop:
            body["stop"] = list(settings.stop)
        limit = self._limit
        try:
            return _read(await self._ask(body | {limit: settings.max_new_tokens}))
        except EngineRefused as refused:
            if limit != _LIMITS[0] or _LIMITS[0] not in str(refused) or isinstance(refused, EngineUnauthorized):
                raise
        self._limit = _LIMITS[1]
        return _read(await self._ask(body | {self._limit: settings.max_new_tokens}))

    async def check(self) -> None:
        """Raises an EngineError unless the endpoint answers, takes our key and has the model."""
        await check_model(self._call, self._model, field=self._field)

    async def _ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self._call("POST", "/chat/completions", body, timeout_s=self._request_timeout_s)


def _read(answer: dict[str, Any]) -> Generated:
    try:
        choice = answer["choices"][0]
        reason = choice["finish_reason"]
        message = choice["message"]
        text = str(message.get("content") or "")
        declined = message.get("refusal")
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise EngineError(
            f"/v1/chat/completions answered in a shape we do not know: {type(error).__name__} {error}"
        ) from None
    if declined or reason == "content_filter":
        raise EngineRefused("/v1/chat/completions: the endpoint declined to answer")
    if reason not in ("stop", "length"):
        raise EngineError(f"/v1/chat/completions ended for a reason we do not know: {reason!r}")
    return answered(text, cut=reason == "length")
