"""OpenAI's library over completions: text in, text out."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.support.gateway.scripted_session import answer, saying
from tests.support.gateway.serving import served


async def test_a_text_is_continued_whole_and_streamed() -> None:
    session = saying(answer("two, three"), answer("zwei", finish="length"))
    async with served(session) as gateway:
        whole = await gateway.openai.completions.create(model="planner", prompt="one, ", n=2, stop="\n")
        stream = await gateway.openai.completions.create(
            model="planner", prompt=["one, "], n=2, max_tokens=40, stream=True, stream_options={"include_usage": True}
        )
        said, last = {0: "", 1: ""}, None
        async for chunk in stream:
            last = chunk
            for choice in chunk.choices:
                said[choice.index] += choice.text
    assert [(choice.text, choice.finish_reason) for choice in whole.choices] == [
        ("two, three", "stop"),
        ("zwei", "length"),
    ]
    assert said == {0: "two, three", 1: "zwei"}
    assert last is not None
    assert last.usage is not None
    assert last.usage.completion_tokens == 10
    first, second = session.asked
    assert (first.messages, first.stop, first.max_tokens) == ("one, ", ("\n",), 16)
    assert (second.messages, second.max_tokens) == ("one, ", 40)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"prompt": [1, 2]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"logprobs": 1}, "logprobs"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(request_: dict[str, Any], field: str) -> None:
    async with served(saying(answer("never"))) as gateway:
        with pytest.raises(openai.BadRequestError) as caught:
            await gateway.openai.completions.create(**{"model": "planner", "prompt": "one", **request_})
    assert caught.value.param == field
