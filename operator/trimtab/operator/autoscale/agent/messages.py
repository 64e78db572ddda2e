"""One request to the Messages API: what it may cost, what comes back, and what each way of failing is called.

Messages of the model are checked here, because the SDK builds its objects without validation, so that a malformed one
would surface later as an odd attribute error.
"""

from __future__ import annotations

from typing import Annotated, Any

import anthropic
import msgspec
from anthropic.types import MessageParam, ToolParam
from msgspec import Meta

from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.values import check_plain
from trimtab.operator.autoscale.agent.egress import EgressRefused
from trimtab.operator.autoscale.agent.proposal import Cause, MaintainerFailed

_TOO_MANY_REQUESTS = 429
_SERVER_ERRORS = 500
# JSON with many figures has about three bytes per token.
_BYTES_PER_TOKEN = 3
_SMALLEST_MESSAGE = 256
_LARGEST_MESSAGE = 8192
_Tokens = Annotated[int, Meta(ge=0, le=2**53)]
_ToolUseId = Annotated[str, Meta(min_length=1, max_length=256)]


class Usage(msgspec.Struct, frozen=True):
    input_tokens: _Tokens
    output_tokens: _Tokens
    cache_creation_input_tokens: _Tokens | None = None
    cache_read_input_tokens: _Tokens | None = None

    @property
    def total(self) -> int:
        """What the request read, from a cache or not, and wrote."""
        cached = (self.cache_creation_input_tokens or 0) + (self.cache_read_input_tokens or 0)
        return self.input_tokens + cached + self.output_tokens


class ModelMessage(msgspec.Struct, frozen=True):
    content: list[dict[str, Any]]
    """As received, because it must be sent back unchanged."""
    stop_reason: str
    usage: Usage


class ToolCall(msgspec.Struct, frozen=True):
    id: _ToolUseId
    name: str
    input: Any


def parse_message(body: bytes) -> ModelMessage:
    try:
        message = msgspec.json.decode(body, type=ModelMessage)
        check_plain(message.content, field="content")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WireError):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "the endpoint's answer is not one of the Messages API") from None
    if not all(isinstance(block.get("type"), str) for block in message.content):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "a block of the endpoint's answer has no type")
    return message


def tool_calls(message: ModelMessage) -> list[ToolCall]:
    """What the model wants done. Raises when it wants nothing more."""
    match message.stop_reason:
        case "tool_use":
            pass
        case "refusal":
            raise MaintainerFailed(Cause.REFUSED, "the model refused to answer")
        case "max_tokens":
            raise MaintainerFailed(Cause.CUT_OFF, "the model's answer was cut off at its limit of tokens")
        case "model_context_window_exceeded":
            raise MaintainerFailed(Cause.CUT_OFF, "the case does not fit the model's context")
        case _:
            raise MaintainerFailed(Cause.NO_PROPOSAL, "the model ended without a proposal")
    try:
        calls = [msgspec.convert(block, ToolCall) for block in message.content if block.get("type") == "tool_use"]
    except msgspec.ValidationError:
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "a tool call without id, name or input") from None
    if len({call.id for call in calls}) < len(calls):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "two tool calls with the same id")
    if not calls:
        raise MaintainerFailed(Cause.NO_PROPOSAL, "the model ended without a proposal")
    return calls


async def request_message(
    client: anthropic.AsyncAnthropic,
    *,
    model: str,
    max_tokens: int,
    system: str,
    tools: list[ToolParam],
    messages: list[MessageParam],
    timeout_s: float,
) -> ModelMessage:
    try:
        response = await client.messages.with_raw_response.create(
            model=model, max_tokens=max_tokens, system=system, tools=tools, messages=messages, timeout=timeout_s
        )
        body = await response.read()
    except anthropic.AnthropicError as error:
        failure = _failure(error)
    else:
        return parse_message(body)
    # Raised out here, without the SDK's error as its context: that holds the request, and the request holds the key.
    raise failure


def _failure(error: anthropic.AnthropicError) -> MaintainerFailed:
    """Without the endpoint's words: it may be any server inside the cluster, and what it says ends up in a status."""
    match error:
        case anthropic.APIStatusError(status_code=status):
            return MaintainerFailed(_status_cause(status), f"the endpoint answered HTTP {status}")
        case anthropic.APITimeoutError():
            return MaintainerFailed(Cause.DEADLINE, "the model did not answer in time")
        case anthropic.APIConnectionError() if isinstance(error.__cause__, EgressRefused):
            return MaintainerFailed(Cause.BAD_SETTINGS, str(error.__cause__))
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


class TokenBudget:
    """The tokens of one decision, over all its requests. What a request will read is estimated before it is sent, so
    that a decision ends before its budget does and not after.
    """

    def __init__(self, total: int) -> None:
        self._total = total
        self._conversation = 0
        self.spent = 0

    def message_limit(self, *, new_bytes: int) -> int:
        """Tokens that the next message may have, when the request adds so many bytes to what was sent before."""
        reading = self._conversation + new_bytes // _BYTES_PER_TOKEN
        left = self._total - self.spent - reading
        if left < _SMALLEST_MESSAGE:
            raise MaintainerFailed(
                Cause.BUDGET,
                f"{self.spent} of {self._total} tokens are spent, and the next request would need about "
                f"{reading + _SMALLEST_MESSAGE}; raise agent.maxTokens",
            )
        return min(left, _LARGEST_MESSAGE)

    def spend(self, usage: Usage) -> None:
        self.spent += usage.total
        # The next request reads all of this again.
        self._conversation = usage.total
