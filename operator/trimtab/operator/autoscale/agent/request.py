"""One request to the model, and what each way of failing is called."""

from __future__ import annotations

from typing import Any

import anthropic
from anthropic.types import MessageParam, ToolParam

from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.messages import Answer, parse_answer

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500


async def request_answer(
    client: anthropic.AsyncAnthropic,
    *,
    model: str,
    max_tokens: int,
    system: str,
    tools: list[ToolParam],
    messages: list[MessageParam],
    timeout_s: float,
) -> Answer:
    try:
        response = await client.messages.with_raw_response.create(
            model=model, max_tokens=max_tokens, system=system, tools=tools, messages=messages, timeout=timeout_s
        )
        body = await response.read()
    except anthropic.AnthropicError as error:
        failure = _failure(error)
    else:
        return parse_answer(body)
    # Raised out here, without the SDK's error as its context: that holds the request, and the request holds the key.
    raise failure


def _failure(error: anthropic.AnthropicError) -> MaintainerFailed:
    """Without the endpoint's words: it may be any server inside the cluster, and what it says ends up in a status."""
    match error:
        case anthropic.APIStatusError(status_code=status):
            return MaintainerFailed(_status_cause(status), f"the endpoint answered HTTP {status}")
        case anthropic.APITimeoutError():
            return MaintainerFailed(Cause.DEADLINE, "the model did not answer in time")
        case anthropic.APIConnectionError():
            return MaintainerFailed(Cause.CONNECTION, f"the connection to the endpoint failed{_kind(error.__cause__)}")
        case _:
            return MaintainerFailed(Cause.CONNECTION, f"the request failed: {type(error).__name__}")


def _status_cause(status: int) -> Cause:
    if status == _TOO_MANY_REQUESTS:
        return Cause.RATE_LIMITED
    return Cause.SERVER_ERROR if status >= _SERVER_ERRORS else Cause.REQUEST_REFUSED


def _kind(error: Any) -> str:
    return "" if error is None else f": {type(error).__name__}"
