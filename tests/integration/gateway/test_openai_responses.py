"""OpenAI's library over responses: items there and back, whole or streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from openai.types.responses import FunctionToolParam
from pydantic import BaseModel

from tests.support.gateway.scripted_session import ScriptedSession, answer, call, saying
from tests.support.gateway.serving import served
from trimtab.rollout.gateway.exchange import BudgetSpent, Said

WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "description": "of a place",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}},
    "strict": False,
}
CALLS = (
    call("weather", '{"place": "Bern"}', call_id="call_1"),
    call("weather", '{"place": "Köln"}', call_id="call_2"),
)


class Verdict(BaseModel):
    right: bool


async def test_an_answer_with_its_usage() -> None:
    session = saying(answer("Good day.", reasoning="They greet."))
    async with served(session) as gateway:
        response = await gateway.openai.responses.create(
            model="planner", instructions="Be kind.", input="hello", max_output_tokens=9, reasoning={"effort": "low"}
        )
    assert response.output_text == "Good day."
    assert response.status == "completed"
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (7, 5)
    assert response.usage.input_tokens_details.cached_tokens == 3
    (ask,) = session.asked
    assert ask.messages == (Said(speaker="system", text="Be kind."), Said(speaker="user", text="hello"))
    assert (ask.max_tokens, ask.wishes) == (9, {"reasoning_effort": "low"})


async def test_a_turn_of_several_items_is_one_message_again_when_it_is_sent_back() -> None:
    session = saying(answer("I look.", *CALLS, reasoning="Two places."))
    async with served(session) as gateway:
        response = await gateway.openai.responses.create(model="planner", input="hello", tools=[WEATHER])
        history: list[Any] = [{"role": "user", "content": "hello"}, *(item.model_dump() for item in response.output)]
        history += [
            {"type": "function_call_output", "call_id": "call_1", "output": "rain"},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "sun"}]},
        ]
        await gateway.openai.responses.create(model="planner", input=history, tools=[WEATHER])
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "function_call"]
    assert session.asked[1].messages == (
        Said(speaker="user", text="hello"),
        Said(speaker="assistant", text="I look.", reasoning="Two places.", calls=CALLS),
        Said(speaker="tool", text="rain", answers="call_1"),
        Said(speaker="tool", text="sun", answers="call_2"),
    )


async def test_the_library_gathers_a_stream_into_the_same_response() -> None:
    async with served(saying(answer("I look.", *CALLS, reasoning="Two places."))) as gateway:
        async with gateway.openai.responses.stream(model="planner", input="hello", tools=[WEATHER]) as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        whole = await gateway.openai.responses.create(model="planner", input="hello", tools=[WEATHER])
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "I look."
    assert "".join(event.delta for event in events if event.type == "response.reasoning_text.delta") == "Two places."
    written = ["", ""]
    for event in events:
        if event.type == "response.function_call_arguments.delta":
            written[event.output_index - 2] += event.delta
    assert written == [one.arguments for one in CALLS]
    assert [_without_ids(item) for item in final.output] == [_without_ids(item) for item in whole.output]
    assert final.usage == whole.usage


async def test_what_is_cut_off_is_incomplete() -> None:
    async with served(saying(answer("Good", finish="length"))) as gateway:
        whole = await gateway.openai.responses.create(model="planner", input="hello")
        stream = await gateway.openai.responses.create(model="planner", input="hello", stream=True)
        last = [event async for event in stream][-1]
    assert whole.status == "incomplete"
    assert whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens"
    assert last.type == "response.incomplete"


async def test_structured_output_is_parsed_by_the_library() -> None:
    session = saying(answer(json.dumps({"right": True})))
    async with served(session) as gateway:
        response = await gateway.openai.responses.parse(model="verifier", input="is it?", text_format=Verdict)
    assert response.output_parsed == Verdict(right=True)
    assert session.asked[0].schema is not None
    assert set(session.asked[0].schema["properties"]) == {"right"}


async def test_a_stream_that_fails_says_so_and_ends_as_failed() -> None:
    session = ScriptedSession(lambda _: [answer("Good day.")], fails_after=(2, BudgetSpent("turns: 4 of 4 are spent")))
    async with served(session) as gateway:
        stream = await gateway.openai.responses.create(model="planner", input="hello", stream=True)
        events = [event async for event in stream]
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].type == "response.failed"
    assert events[-1].response.error is not None
    assert events[-1].response.error.message == "turns: 4 of 4 are spent"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
        ({"input": []}, "input"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(request_: dict[str, Any], field: str) -> None:
    async with served(saying(answer("never"))) as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai.responses.create(**{"model": "planner", "input": "hello", **request_})
    assert caught.value.param == field


def _without_ids(item: Any) -> Any:
    """And without what the library itself adds when it parses."""
    shown = item.model_dump(exclude_none=True)
    return {key: value for key, value in shown.items() if key not in ("id", "parsed_arguments")}
