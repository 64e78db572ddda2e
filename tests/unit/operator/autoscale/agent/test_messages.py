from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.operator.autoscale.agent.messages import TokenBudget, Usage, parse_message, tool_calls
from trimtab.operator.autoscale.agent.proposal import Cause, MaintainerFailed


def body(**changes: Any) -> bytes:
    use = {"type": "tool_use", "id": "toolu_1", "name": "read_report", "input": {}}
    values = {"content": [use], "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 7}}
    return json.dumps({**values, **changes}).encode()


def test_a_message_with_fields_that_are_newer_than_we_are() -> None:
    message = parse_message(
        body(container=None, stop_details={"type": "new"}, usage={"input_tokens": 1, "output_tokens": 2, "x": 3})
    )

    assert [(call.id, call.name, call.input) for call in tool_calls(message)] == [("toolu_1", "read_report", {})]
    assert message.usage.total == 3


def test_tokens_from_a_cache_count() -> None:
    usage = Usage(input_tokens=1, output_tokens=2, cache_creation_input_tokens=30, cache_read_input_tokens=400)

    assert usage.total == 433


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "wrong",
    [
        {"content": "text"},
        {"content": [1]},
        {"content": [{"text": "no type"}]},
        {"content": [{"type": "text", "text": nested(100)}]},
        {"stop_reason": None},
        {"usage": None},
        {"usage": {"input_tokens": 1.5, "output_tokens": 0}},
        {"usage": {"input_tokens": True, "output_tokens": 0}},
        {"usage": {"input_tokens": 10**20, "output_tokens": 0}},
    ],
)
def test_what_is_no_answer(wrong: dict[str, Any]) -> None:
    with pytest.raises(MaintainerFailed) as failed:
        parse_message(body(**wrong))

    assert failed.value.cause is Cause.MALFORMED_ANSWER


@pytest.mark.parametrize("text", [b"", b"null", b"NaN", b'{"content": [{"type": "\\ud800"}]}', b"[" * 100_000])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(MaintainerFailed) as failed:
        parse_message(text)

    assert failed.value.cause is Cause.MALFORMED_ANSWER


def test_a_message_gets_what_reading_leaves() -> None:
    assert TokenBudget(5000).message_limit(new_bytes=6000) == 3000


def test_a_message_is_never_very_long() -> None:
    assert TokenBudget(1_000_000).message_limit(new_bytes=6000) == 8192


def test_the_conversation_so_far_is_read_again() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=2000, output_tokens=500, cache_read_input_tokens=1000))

    assert budget.spent == 3500
    assert budget.message_limit(new_bytes=300) == 10_000 - 3500 - 3500 - 100


def test_a_request_that_would_not_fit_is_not_sent() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=4000, output_tokens=900))

    with pytest.raises(MaintainerFailed, match="4900 of 10000 tokens are spent, .* need about 5256") as failed:
        budget.message_limit(new_bytes=300)
    assert failed.value.cause is Cause.BUDGET


def test_a_budget_that_is_overdrawn() -> None:
    budget = TokenBudget(10_000)
    budget.spend(Usage(input_tokens=10**9, output_tokens=0))

    with pytest.raises(MaintainerFailed):
        budget.message_limit(new_bytes=0)
