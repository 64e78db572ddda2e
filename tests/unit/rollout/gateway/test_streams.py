"""Whatever a model says and however it is cut, the deltas of a stream come to the whole answer, in every protocol."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.gateway.scripted_session import answer, call, pieces_of
from trimtab.rollout.gateway.exchange import Answer, Piece, ToolCall
from trimtab.rollout.gateway.protocols.anthropic_messages import AnthropicMessages
from trimtab.rollout.gateway.protocols.openai_chat import OpenAIChat
from trimtab.rollout.gateway.protocols.openai_completions import OpenAICompletions
from trimtab.rollout.gateway.protocols.openai_responses import OpenAIResponses
from trimtab.rollout.gateway.protocols.progress import BrokenStream, Progress
from trimtab.rollout.gateway.protocols.surface import Reply, Stamp, Surface

STAMP = Stamp(ident="0", created=0)
MESSAGES = [{"role": "user", "content": "hello"}]

texts = st.text(max_size=30)
names = st.sampled_from(["weather", "search", "Übersetze!"])
arguments = st.one_of(
    st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.integers(), max_size=3).map(json.dumps)
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    written = draw(st.lists(st.tuples(names, arguments), max_size=3))
    calls = [call(name, text, call_id=f"call_{place}") for place, (name, text) in enumerate(written)]
    return answer(draw(texts), *calls, reasoning=draw(texts))


sizes = st.lists(st.integers(1, 7), min_size=1, max_size=4)
kept = st.floats(0.0, 1.0)
"""The share of the pieces that come before the answer is whole; the rest is left to the writer."""


def events(data: bytes) -> Iterator[dict[str, Any]]:
    """As a client reads them: one line of data in each."""
    for block in data.decode().split("\n\n")[:-1]:
        (line,) = [line for line in block.split("\n") if line.startswith("data: ")]
        if line != "data: [DONE]":
            yield json.loads(line.removeprefix("data: "))


def streamed(reply: Reply, wholes: Sequence[Answer], cuts: Sequence[int], share: float) -> list[dict[str, Any]]:
    writer = reply.writer(STAMP)
    data = b"".join(writer.begin())
    for index, whole in enumerate(wholes):
        pieces = list(pieces_of(index, whole, sizes=cuts))
        for piece in pieces[: round(len(pieces) * share)]:
            data += b"".join(writer.piece(piece))
    for index, whole in enumerate(wholes):
        data += b"".join(writer.answer(index, whole))
    return list(events(data + b"".join(writer.end())))


def asked(surface: Surface, **body: Any) -> Reply:
    return surface.read(json.dumps({"model": "planner", "stream": True, **body}).encode())


@given(wholes=st.lists(answers(), min_size=1, max_size=3), cuts=sizes, share=kept)
def test_chat(wholes: list[Answer], cuts: list[int], share: float) -> None:
    reply = asked(OpenAIChat(), messages=MESSAGES, n=len(wholes))
    chunks = streamed(reply, wholes, cuts, share)
    for index, whole in enumerate(wholes):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        deltas = [choice["delta"] for choice in mine]
        assert "".join(delta.get("content", "") for delta in deltas) == whole.said.text
        assert "".join(delta.get("reasoning_content", "") for delta in deltas) == whole.said.reasoning
        assert gathered(part for delta in deltas for part in delta.get("tool_calls", ())) == whole.said.calls
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == [whole.finish]


def gathered(parts: Iterable[dict[str, Any]]) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for part in parts:
        if "id" in part:
            assert part["index"] == len(calls)
            calls.append(ToolCall(call_id=part["id"], name=part["function"]["name"], arguments=""))
        last = calls[part["index"]]
        calls[part["index"]] = ToolCall(
            call_id=last.call_id, name=last.name, arguments=last.arguments + part["function"]["arguments"]
        )
    return tuple(calls)


@given(text=texts, cuts=sizes, share=kept)
def test_completions(text: str, cuts: list[int], share: float) -> None:
    chunks = streamed(asked(OpenAICompletions(), prompt="one"), [answer(text)], cuts, share)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == text


@given(whole=answers(), cuts=sizes, share=kept)
def test_responses(whole: Answer, cuts: list[int], share: float) -> None:
    reply = asked(OpenAIResponses(), input="hello")
    sent = streamed(reply, [whole], cuts, share)
    grown: dict[int, str] = {}
    for event in sent:
        if event["type"].endswith(".delta"):
            grown[event["output_index"]] = grown.get(event["output_index"], "") + event["delta"]
    output = sent[-1]["response"]["output"]
    assert output == reply.whole([whole], STAMP)["output"]
    closed = [event["item"] for event in sent if event["type"] == "response.output_item.done"]
    assert closed == output
    for place, item in enumerate(output):
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert grown.get(place, "") == text
    assert [event["sequence_number"] for event in sent] == list(range(len(sent)))


@given(whole=answers(), cuts=sizes, share=kept)
def test_messages(whole: Answer, cuts: list[int], share: float) -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    reply = asked(AnthropicMessages(), messages=MESSAGES, max_tokens=2000, thinking=thinking)
    blocks: list[dict[str, Any]] = []
    sent = streamed(reply, [whole], cuts, share)
    open_block = None
    for event in sent:
        if event["type"] == "content_block_start":
            assert (open_block, event["index"]) == (None, len(blocks))
            open_block = event["index"]
            blocks.append(event["content_block"])
        elif event["type"] == "content_block_delta":
            assert event["index"] == open_block
            delta = {key: value for key, value in event["delta"].items() if key != "type"}
            for key, value in delta.items():
                blocks[-1] |= {"input": json.loads(value)} if key == "partial_json" else {key: blocks[-1][key] + value}
        elif event["type"] == "content_block_stop":
            open_block = None
    assert blocks == reply.whole([whole], STAMP)["content"]
    assert [event["type"] for event in sent][-2:] == ["message_delta", "message_stop"]


@pytest.mark.parametrize(
    "sent",
    [
        [Piece(index=0, text="Bad")],
        [Piece(index=0, text="Good day.")],
        [Piece(index=0, reasoning="x")],
        [Piece(index=0, call=call("weather", "{}", call_id="call_7"))],
    ],
)
def test_a_stream_that_said_what_the_answer_is_not_is_broken(sent: list[Piece]) -> None:
    progress = Progress(0)
    for piece in sent:
        progress.take(piece)
    with pytest.raises(BrokenStream):
        progress.missing(answer("Good"))


def test_a_part_of_a_call_that_never_began_is_broken() -> None:
    with pytest.raises(BrokenStream):
        Progress(0).take(Piece(index=0, call=call("", "{}")))
