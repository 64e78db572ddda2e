"""OpenAI's library over chat completions: what it is told is what the session says, whole or streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from tests.support.gateway.scripted_session import answer, call, saying
from tests.support.gateway.serving import served
from trimtab.rollout.gateway.exchange import Said, Tool, ToolCall

WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a place",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    },
}
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]
CALLS = (
    call("weather", '{"place": "Bern"}', call_id="call_1"),
    call("weather", '{"place": "Köln"}', call_id="call_2"),
)


class Verdict(BaseModel):
    right: bool
    why: str


async def test_an_answer_with_its_usage() -> None:
    session = saying(answer("Good day.", reasoning="They greet."))
    async with served(session) as gateway:
        completion = await gateway.openai.chat.completions.create(
            model="planner", messages=HELLO, max_completion_tokens=9, stop=["\n", "END"], temperature=0.3, seed=4
        )
    (choice,) = completion.choices
    assert (choice.message.content, choice.finish_reason) == ("Good day.", "stop")
    assert choice.message.model_dump()["reasoning_content"] == "They greet."
    assert completion.model == "planner"
    assert completion.usage is not None
    assert completion.usage.prompt_tokens == 7
    assert completion.usage.total_tokens == 12
    assert completion.usage.prompt_tokens_details is not None
    assert completion.usage.prompt_tokens_details.cached_tokens == 3
    (ask,) = session.asked
    assert ask.messages == (Said(speaker="user", text="hello"),)
    assert (ask.role, ask.max_tokens, ask.stop) == ("planner", 9, ("\n", "END"))
    assert ask.wishes == {"temperature": 0.3, "seed": 4}


async def test_a_stream_says_the_same_and_its_usage_when_asked() -> None:
    async with served(saying(answer("Good day, and welcome.", reasoning="They greet."))) as gateway:
        stream = await gateway.openai.chat.completions.create(
            model="planner", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == "Good day, and welcome."
    assert "".join(delta.model_dump().get("reasoning_content") or "" for delta in deltas) == "They greet."
    assert len({chunk.id for chunk in chunks}) == 1
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 5


async def test_parallel_calls_and_their_results_go_there_and_back() -> None:
    session = saying(answer("I look.", *CALLS))
    async with served(session) as gateway:
        completion = await gateway.openai.chat.completions.create(model="planner", messages=HELLO, tools=[WEATHER])
        message = completion.choices[0].message
        assert completion.choices[0].finish_reason == "tool_calls"
        assert message.tool_calls is not None
        results: list[ChatCompletionMessageParam] = [
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            {"role": "tool", "tool_call_id": "call_2", "content": [{"type": "text", "text": "sun"}]},
        ]
        echoed: Any = message.model_dump()
        await gateway.openai.chat.completions.create(model="planner", messages=[*HELLO, echoed, *results])
    first, second = session.asked
    parameters = WEATHER["function"]["parameters"]
    assert first.tools == (Tool(name="weather", description="of a place", parameters=parameters),)
    assert second.messages == (
        Said(speaker="user", text="hello"),
        Said(speaker="assistant", text="I look.", calls=CALLS),
        Said(speaker="tool", text="rain", answers="call_1"),
        Said(speaker="tool", text="sun", answers="call_2"),
    )


async def test_the_library_gathers_calls_from_a_stream() -> None:
    async with (
        served(saying(answer("I look.", *CALLS))) as gateway,
        gateway.openai.chat.completions.stream(model="planner", messages=HELLO, tools=[WEATHER]) as stream,
    ):
        completion = await stream.get_final_completion()
    message = completion.choices[0].message
    assert message.content == "I look."
    gathered = [
        ToolCall(call_id=one.id, name=one.function.name, arguments=one.function.arguments)
        for one in message.tool_calls or ()
    ]
    assert tuple(gathered) == CALLS
    assert completion.choices[0].finish_reason == "tool_calls"


async def test_several_choices_whole_and_streamed() -> None:
    session = saying(answer("one"), answer("three", finish="length"))
    async with served(session) as gateway:
        whole = await gateway.openai.chat.completions.create(model="planner", messages=HELLO, n=2)
        stream = await gateway.openai.chat.completions.create(model="planner", messages=HELLO, n=2, stream=True)
        said, reasons = {0: "", 1: ""}, {}
        async for chunk in stream:
            for choice in chunk.choices:
                said[choice.index] += choice.delta.content or ""
                reasons[choice.index] = choice.finish_reason
    assert [(choice.message.content, choice.finish_reason) for choice in whole.choices] == [
        ("one", "stop"),
        ("three", "length"),
    ]
    assert whole.usage is not None
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (7, 10)
    assert said == {0: "one", 1: "three"}
    assert reasons == {0: "stop", 1: "length"}
    assert [ask.count for ask in session.asked] == [2, 2]


async def test_structured_output_is_parsed_by_the_library() -> None:
    session = saying(answer(json.dumps({"right": True, "why": "it is"})))
    async with served(session) as gateway:
        completion = await gateway.openai.chat.completions.parse(
            model="verifier", messages=HELLO, response_format=Verdict
        )
        await gateway.openai.chat.completions.create(
            model="verifier", messages=HELLO, response_format={"type": "json_object"}
        )
    assert completion.choices[0].message.parsed == Verdict(right=True, why="it is")
    first, second = session.asked
    assert first.schema is not None
    assert set(first.schema["properties"]) == {"right", "why"}
    assert second.schema == {"type": "object"}


async def test_wishes_about_tools_are_told_to_the_session_and_none_means_none() -> None:
    session = saying(answer("so"))
    async with served(session) as gateway:
        for choice in ("required", "none", {"type": "function", "function": {"name": "weather"}}):
            chosen: Any = choice
            await gateway.openai.chat.completions.create(
                model="planner", messages=HELLO, tools=[WEATHER], tool_choice=chosen, parallel_tool_calls=False
            )
    required, none, named = session.asked
    assert required.wishes == {"tool_choice": "required", "parallel_tool_calls": False}
    assert (len(required.tools), len(none.tools)) == (1, 0)
    assert named.wishes["tool_choice"] == {"name": "weather"}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"n": 0}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": "hot"}, "temperature"),
        ({"stop": ["x"] * 17}, "stop"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"extra_body": {"beam_width": 4}}, "beam_width"),
        ({"tools": [{"type": "function", "function": {"name": "no spaces"}}]}, "tools.0.function.name"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "tool", "content": "4"}]}, "messages.0.tool_call_id"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(request_: dict[str, Any], field: str) -> None:
    session = saying(answer("never"))
    async with served(session) as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai.chat.completions.create(**{"model": "planner", "messages": HELLO, **request_})
    assert caught.value.param == field
    assert field in caught.value.message
    assert session.asked == []
