"""Anthropic's library over messages: blocks there and back, whole or streamed."""

from __future__ import annotations

import json
from typing import Any

import anthropic
import pytest
from anthropic.types import MessageParam, ToolParam

from tests.support.gateway.scripted_session import ScriptedSession, answer, call, saying
from tests.support.gateway.serving import served
from trimtab.rollout.gateway.exchange import BudgetSpent, Said, Tool

WEATHER: ToolParam = {
    "name": "weather",
    "description": "of a place",
    "input_schema": {"type": "object", "properties": {"place": {"type": "string"}}},
}
HELLO: list[MessageParam] = [{"role": "user", "content": "hello"}]
CALLS = (
    call("weather", '{"place":"Bern"}', call_id="call_1"),
    call("weather", '{"place":"Köln"}', call_id="call_2"),
)


async def test_an_answer_with_its_usage() -> None:
    session = saying(answer("Good day."))
    async with served(session) as gateway:
        message = await gateway.anthropic.messages.create(
            model="planner", max_tokens=9, system="Be kind.", messages=HELLO, stop_sequences=["END"]
        )
    (block,) = message.content
    assert block.type == "text"
    assert (block.text, message.stop_reason) == ("Good day.", "end_turn")
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (4, 3)
    assert message.usage.output_tokens == 5
    (ask,) = session.asked
    assert ask.messages == (Said(speaker="system", text="Be kind."), Said(speaker="user", text="hello"))
    assert (ask.role, ask.max_tokens, ask.stop) == ("planner", 9, ("END",))


async def test_parallel_calls_and_their_results_go_there_and_back() -> None:
    session = saying(answer("I look.", *CALLS))
    async with served(session) as gateway:
        message = await gateway.anthropic.messages.create(
            model="planner", max_tokens=9, messages=HELLO, tools=[WEATHER], tool_choice={"type": "any"}
        )
        echoed: Any = [block.model_dump() for block in message.content]
        results: MessageParam = {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": "rain"},
                {"type": "tool_result", "tool_use_id": "call_2", "content": [{"type": "text", "text": "sun"}]},
                {"type": "text", "text": "and?"},
            ],
        }
        await gateway.anthropic.messages.create(
            model="planner", max_tokens=9, messages=[*HELLO, {"role": "assistant", "content": echoed}, results]
        )
    assert message.stop_reason == "tool_use"
    first, second = session.asked
    assert first.tools == (Tool(name="weather", description="of a place", parameters=WEATHER["input_schema"]),)
    assert first.wishes == {"tool_choice": "required"}
    assert second.messages == (
        Said(speaker="user", text="hello"),
        Said(speaker="assistant", text="I look.", calls=CALLS),
        Said(speaker="tool", text="rain", answers="call_1"),
        Said(speaker="tool", text="sun", answers="call_2"),
        Said(speaker="user", text="and?"),
    )


async def test_the_library_gathers_a_stream_into_the_same_message() -> None:
    session = saying(answer("I look.", *CALLS, reasoning="Two places."))
    asked: dict[str, Any] = {
        "model": "planner",
        "max_tokens": 2000,
        "messages": HELLO,
        "tools": [WEATHER],
        "thinking": {"type": "enabled", "budget_tokens": 1024},
    }
    async with served(session) as gateway:
        whole = await gateway.anthropic.messages.create(**asked)
        async with gateway.anthropic.messages.stream(**asked) as stream:
            gathered = await stream.get_final_message()
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.to_dict() for block in gathered.content] == [block.to_dict() for block in whole.content]
    assert (gathered.stop_reason, gathered.usage.output_tokens) == ("tool_use", 5)
    assert gathered.usage.input_tokens == whole.usage.input_tokens


async def test_thoughts_are_for_those_who_ask_for_them() -> None:
    async with served(saying(answer("Good day.", reasoning="They greet."))) as gateway:
        message = await gateway.anthropic.messages.create(model="planner", max_tokens=9, messages=HELLO)
        async with gateway.anthropic.messages.stream(model="planner", max_tokens=9, messages=HELLO) as stream:
            streamed = await stream.get_final_message()
    assert [block.type for block in message.content] == ["text"]
    assert [block.type for block in streamed.content] == ["text"]


@pytest.mark.parametrize("written", ['{"place": ', "Bern", "[1]"])
async def test_arguments_that_are_no_object_come_back_as_the_model_wrote_them(written: str) -> None:
    session = saying(answer("", call("weather", written)))
    async with served(session) as gateway:
        async with gateway.anthropic.messages.stream(
            model="planner", max_tokens=9, messages=HELLO, tools=[WEATHER]
        ) as stream:
            message = await stream.get_final_message()
        echoed: Any = [block.to_dict() for block in message.content]
        await gateway.anthropic.messages.create(
            model="planner", max_tokens=9, messages=[*HELLO, {"role": "assistant", "content": echoed}]
        )
    said = session.asked[1].messages[-1]
    assert isinstance(said, Said)
    assert said.calls == (call("weather", written),)


async def test_structured_output_asks_for_its_schema() -> None:
    schema: dict[str, object] = {"type": "object", "properties": {"right": {"type": "boolean"}}}
    session = saying(answer(json.dumps({"right": True})))
    async with served(session) as gateway:
        await gateway.anthropic.messages.create(
            model="planner",
            max_tokens=9,
            messages=HELLO,
            output_config={"format": {"type": "json_schema", "schema": schema}},
        )
    assert session.asked[0].schema == schema


async def test_a_stream_that_fails_is_an_error_of_the_library() -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], fails_after=(2, BudgetSpent("turns: 4 of 4 are spent")))
    async with served(session) as gateway:
        with pytest.raises(anthropic.APIStatusError, match="turns: 4 of 4 are spent"):
            async with gateway.anthropic.messages.stream(model="planner", max_tokens=9, messages=HELLO) as stream:
                await stream.get_final_message()


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        ({"extra_body": {"mcp_servers": []}}, "mcp_servers"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(request_: dict[str, Any], field: str) -> None:
    async with served(saying(answer("never"))) as gateway:
        with pytest.raises(anthropic.BadRequestError) as caught:
            await gateway.anthropic.messages.create(
                **{"model": "planner", "max_tokens": 9, "messages": HELLO, **request_}
            )
    body: Any = caught.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith(f"{field}: ")
