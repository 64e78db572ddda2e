"""Requests are read or refused: nothing that an agent sends raises anything else, or is left out in silence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rollout.gateway.exchange import Refused, Said, ToolCall
from trimtab.rollout.gateway.protocols.anthropic_messages import AnthropicMessages
from trimtab.rollout.gateway.protocols.openai_chat import OpenAIChat
from trimtab.rollout.gateway.protocols.openai_completions import OpenAICompletions
from trimtab.rollout.gateway.protocols.openai_responses import OpenAIResponses
from trimtab.rollout.gateway.protocols.surface import Surface

SURFACES: dict[str, tuple[Surface, dict[str, Any]]] = {
    "chat": (OpenAIChat(), {"messages": [{"role": "user", "content": "hello"}]}),
    "responses": (OpenAIResponses(), {"input": "hello"}),
    "completions": (OpenAICompletions(), {"prompt": "hello"}),
    "messages": (AnthropicMessages(), {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 9}),
}
FIELDS = [
    *("model", "messages", "input", "prompt", "stream", "stream_options", "n", "stop", "tools", "tool_choice", "text"),
    *("max_tokens", "response_format", "temperature", "seed", "metadata", "system", "thinking", "reasoning", "include"),
]
WORDS = st.sampled_from(
    [*("role", "content", "type", "text", "user", "assistant", "tool", "function", "name", "id", "input_text"), *FIELDS]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("protocol", SURFACES)
@given(changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
def test_any_json_is_read_or_refused(protocol: str, changes: dict[str, Any]) -> None:
    surface, body = SURFACES[protocol]
    named = True
    try:
        surface.read(json.dumps({"model": "planner", **body, **changes}).encode())
    except Refused as refused:
        named = ": " in refused.message
    assert named


@pytest.mark.parametrize("protocol", SURFACES)
@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_no_json_object_is_refused(protocol: str, body: bytes) -> None:
    with pytest.raises(Refused):
        SURFACES[protocol][0].read(body)


@pytest.mark.parametrize("protocol", SURFACES)
def test_a_field_that_is_unknown_is_refused_unless_it_says_nothing(protocol: str) -> None:
    surface, body = SURFACES[protocol]
    surface.read(json.dumps({"model": "planner", **body, "novelty": None}).encode())
    with pytest.raises(Refused, match="novelty: is not supported here"):
        surface.read(json.dumps({"model": "planner", **body, "novelty": 1}).encode())


def test_two_turns_of_the_model_in_a_row_stay_two() -> None:
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "hello"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "first"}]},
        {"role": "assistant", "content": "one"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "second"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "two"}]},
    ]
    ask = OpenAIResponses().read(json.dumps({"model": "planner", "input": items}).encode()).ask
    assert ask.messages == (
        Said(speaker="user", text="hello"),
        Said(
            speaker="assistant",
            text="one",
            reasoning="first",
            calls=(ToolCall(call_id="a", name="f", arguments="{}"),),
        ),
        Said(speaker="assistant", text="two", reasoning="second"),
    )


def test_parts_of_others_are_paragraphs_and_those_of_the_model_are_one_text() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": role, "content": parts} for role in ("developer", "user", "assistant")]
    ask = OpenAIChat().read(json.dumps({"model": "planner", "messages": messages}).encode()).ask
    assert ask.messages == (
        Said(speaker="system", text="a\nb"),
        Said(speaker="user", text="a\nb"),
        Said(speaker="assistant", text="ab"),
    )
