from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.operator.autoscale.agent.failure import Cause, MaintainerFailed
from trimtab.operator.autoscale.agent.messages import Usage, parse_answer, tool_calls


def body(**changes: Any) -> bytes:
    use = {"type": "tool_use", "id": "toolu_1", "name": "read_report", "input": {}}
    values = {"content": [use], "stop_reason": "tool_use", "usage": {"input_tokens": 5, "output_tokens": 7}}
    return json.dumps({**values, **changes}).encode()


def test_an_answer_with_fields_that_are_newer_than_we_are() -> None:
    answer = parse_answer(
        body(container=None, stop_details={"type": "new"}, usage={"input_tokens": 1, "output_tokens": 2, "x": 3})
    )

    assert [(call.id, call.name, call.input) for call in tool_calls(answer)] == [("toolu_1", "read_report", {})]
    assert answer.usage.total == 3


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
        parse_answer(body(**wrong))

    assert failed.value.cause is Cause.MALFORMED_ANSWER


@pytest.mark.parametrize("text", [b"", b"null", b"NaN", b'{"content": [{"type": "\\ud800"}]}', b"[" * 100_000])
def test_what_is_no_json(text: bytes) -> None:
    with pytest.raises(MaintainerFailed) as failed:
        parse_answer(text)

    assert failed.value.cause is Cause.MALFORMED_ANSWER
