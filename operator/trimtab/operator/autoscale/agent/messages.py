"""An answer of the Messages API, checked by ourselves: the SDK builds its objects without validation, so that whatever
an endpoint sends would surface later as an odd attribute error.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.values import check_plain
from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed

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


class Answer(msgspec.Struct, frozen=True):
    content: list[dict[str, Any]]
    """As received, because it must be sent back unchanged."""
    stop_reason: str
    usage: Usage


class ToolCall(msgspec.Struct, frozen=True):
    id: _ToolUseId
    name: str
    input: Any


def parse_answer(body: bytes) -> Answer:
    try:
        answer = msgspec.json.decode(body, type=Answer)
        check_plain(answer.content, field="content")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WireError):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "the endpoint's answer is not one of the Messages API") from None
    if not all(isinstance(block.get("type"), str) for block in answer.content):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "a block of the endpoint's answer has no type")
    return answer


def tool_calls(answer: Answer) -> list[ToolCall]:
    """What the model wants done. Raises when it wants nothing more."""
    match answer.stop_reason:
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
        calls = [msgspec.convert(block, ToolCall) for block in answer.content if block.get("type") == "tool_use"]
    except msgspec.ValidationError:
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "a tool call without id, name or input") from None
    if len({call.id for call in calls}) < len(calls):
        raise MaintainerFailed(Cause.MALFORMED_ANSWER, "two tool calls with the same id")
    if not calls:
        raise MaintainerFailed(Cause.NO_PROPOSAL, "the model ended without a proposal")
    return calls
