"""The client of Anthropic's Messages API, and of whatever else answers POST /v1/messages, for frozen policies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from trimtab.rollout.engines.contract import (
    EngineError,
    EngineNotFound,
    EngineRefused,
    Generated,
    Progress,
    SamplingSettings,
)
from trimtab.rollout.engines.endpoint import PROBE_TIMEOUT_S, EndpointSession
from trimtab.rollout.engines.messages import answered, messages_of

_API_VERSION = "2023-06-01"
_WHOLE = ("end_turn", "stop_sequence")


class AnthropicClient(EndpointSession):
    """It draws without a seed, and tells neither tokens nor logprobs."""

    async def generate(
        self,
        input_ids: Sequence[int],
        settings: SamplingSettings,
        *,
        request_id: str,
        weight_version: str,
        progress: Progress | None = None,
    ) -> Generated:
        spoken = messages_of(input_ids)
        system = "\n\n".join(one["content"] for one in spoken if one["role"] == "system")
        body: dict[str, Any] = {
            "model": self._model,
            "max_tokens": settings.max_new_tokens,
            "messages": [one for one in spoken if one["role"] != "system"],
        }
        if system:
            body["system"] = system
        # Some models refuse a temperature and a top_p together: what is at its default is not said.
        if settings.temperature != 1.0:
            body["temperature"] = settings.temperature
        if settings.top_p < 1.0:
            body["top_p"] = settings.top_p
        if settings.top_k > 0:
            body["top_k"] = settings.top_k
        if settings.stop:
            body["stop_sequences"] = list(settings.stop)
        return _read(await self._call("POST", "/messages", body, timeout_s=self._request_timeout_s))

    async def check(self) -> None:
        """Raises an EngineError unless the endpoint answers, takes our key and has the model."""
        try:
            await self._call("GET", f"/models/{quote(self._model, safe='')}", None, timeout_s=PROBE_TIMEOUT_S)
        except EngineNotFound:
            raise EngineRefused(f"{self._field}.model: the endpoint does not have {self._model!r}") from None

    def _headers(self) -> dict[str, str]:
        version = {"anthropic-version": _API_VERSION}
        return version if self._api_key is None else version | {"x-api-key": self._api_key.get_secret_value()}


def _read(answer: dict[str, Any]) -> Generated:
    try:
        reason = answer["stop_reason"]
        text = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
        # What ended it is part of what was said.
        text += str(answer.get("stop_sequence") or "") if reason == "stop_sequence" else ""
    except (KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"/v1/messages answered in a shape we do not know: {type(error).__name__} {error}") from None
    if reason == "refusal":
        raise EngineRefused("/v1/messages: the model declined to answer")
    if reason not in (*_WHOLE, "max_tokens"):
        raise EngineError(f"/v1/messages ended for a reason we do not know: {reason!r}")
    return answered(text, cut=reason == "max_tokens")
