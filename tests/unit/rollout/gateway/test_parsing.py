"""What a model wrote, read at once or letter by letter, is the same text, thoughts and calls."""

from __future__ import annotations

# ruff: noqa: RUF001 - DeepSeek's marks are written with these letters
import itertools
import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.gateway.tokenizers import tokenizer_of
from trimtab.rollout.gateway.exchange import Piece, Said, Tool
from trimtab.rollout.gateway.parsing.families import (
    DEEPSEEK,
    GLM,
    HARMONY,
    HERMES,
    LLAMA,
    MISTRAL,
    PLAIN,
    Family,
    family_of,
)

FAMILIES = (HERMES, LLAMA, MISTRAL, DEEPSEEK, GLM, HARMONY, PLAIN)
BY_NAME = {family.name: family for family in FAMILIES}
ADD = Tool(name="add", description="", parameters={"properties": {"a": {"type": "number"}, "as": {"type": "string"}}})


def read(family: Family, parts: Sequence[str], *, thinking: bool = False) -> tuple[Said, list[Piece]]:
    numbers = itertools.count(1)
    reader = family.reader((ADD,), new_id=lambda: f"id{next(numbers)}", thinking=thinking)
    pieces = [piece for part in parts for piece in reader.feed(part)] + reader.close()
    return reader.said, pieces


def calls_of(said: Said) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in said.calls]


DEEPSEEK_CALLS = (
    'Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>look\n```json\n{"at": "sky"}\n```'
    '<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>add\n```json\n{"a": 1}\n```<｜tool▁call▁end｜>'
    "<｜tool▁calls▁end｜>"
)
WRITTEN = [
    (
        HERMES,
        'Let me see.\n<tool_call>\n{"name": "look", "arguments": {"at": "sky"}}\n</tool_call>\n<tool_call>\n'
        '{"name": "add", "arguments": {"a": 1}}\n</tool_call>\n',
    ),
    (
        MISTRAL,
        'Let me see.[TOOL_CALLS] [{"name": "look", "arguments": {"at": "sky"}}, '
        '{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]',
    ),
    (MISTRAL, 'Let me see.[TOOL_CALLS]look[ARGS]{"at": "sky"}[TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}'),
    (DEEPSEEK, DEEPSEEK_CALLS),
    (
        DEEPSEEK,
        'Let me see.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>look<｜tool▁sep｜>{"at": "sky"}<｜tool▁call▁end｜>'
        '<｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
    ),
    (
        GLM,
        "Let me see.\n<tool_call>look\n<arg_key>at</arg_key>\n<arg_value>sky</arg_value>\n</tool_call>\n"
        "<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
    ),
]


@pytest.mark.parametrize(("family", "written"), WRITTEN)
def test_parallel_calls_are_found_behind_a_text(family: Family, written: str) -> None:
    said, _ = read(family, [f"<think>\nhm\n</think>\n\n{written}"])
    assert (said.reasoning, said.text) == ("hm", "Let me see.")
    assert calls_of(said) == [("look", {"at": "sky"}), ("add", {"a": 1})]
    assert len({call.call_id for call in said.calls}) == 2


def test_llama_calls_are_whole_answers() -> None:
    said, _ = read(LLAMA, ['\n{"name": "look", "parameters": {"at": "sky"}}; {"name": "add", "parameters": {"a": 1}}'])
    assert (said.text, calls_of(said)) == ("", [("look", {"at": "sky"}), ("add", {"a": 1})])
    said, _ = read(LLAMA, ['It is {"name": "look", "parameters": {}}'])
    assert (said.text, said.calls) == ('It is {"name": "look", "parameters": {}}', ())


def test_a_tools_description_tells_texts_from_numbers() -> None:
    written = "<arg_key>a</arg_key><arg_value>1</arg_value>\n<arg_key>as</arg_key><arg_value>1</arg_value>"
    assert calls_of(read(GLM, [f"<tool_call>add\n{written}</tool_call>"])[0]) == [("add", {"a": 1, "as": "1"})]
    assert calls_of(read(GLM, ["<tool_call>now</tool_call>"])[0]) == [("now", {})]


def test_messages_of_an_answer_are_told_apart_by_their_heads() -> None:
    thought = "<|channel|>analysis<|message|>so <|end|><|start|>assistant"
    spoken = "<|channel|>commentary<|message|>Let me see.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'
    said, _ = read(HARMONY, [f"{thought}{spoken}{call}"])
    assert (said.reasoning, said.text, calls_of(said)) == ("so ", "Let me see.", [("add", {"a": 1})])
    said, _ = read(HARMONY, [f'{thought} to=functions.add<|channel|>commentary json<|message|>{{"a": 1}}<|call|>'])
    assert (said.reasoning, said.text, calls_of(said)) == ("so ", "", [("add", {"a": 1})])
    said, _ = read(HARMONY, [f"{thought}<|channel|>final<|message|>4<|return|>"])
    assert (said.reasoning, said.text, said.calls) == ("so ", "4", ())
    said, _ = read(HARMONY, [f"{spoken}<|channel|>final<|message|>4"])
    assert said.text == "Let me see.\n4"


@pytest.mark.parametrize(
    ("family", "written"),
    [
        (GLM, "<tool_call>look at this</tool_call>"),
        (GLM, "<tool_call>look\n<arg_key>at</arg_key></tool_call>"),
        (GLM, '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        (HARMONY, "<|channel|>final"),
        (HARMONY, "to=functions.add<|message|>{broken<|call|>"),
        (HARMONY, "to be, or not: a < b"),
        (HERMES, "<tool_call>\n{broken\n</tool_call>"),
        (HERMES, '<tool_call>\n{"name": "cut'),
        (HERMES, "a <tool_ca"),
        (HERMES, "<tool_call>{}</tool_call> and on"),
        (LLAMA, '{"answer": 4}'),
        (LLAMA, "{4"),
        (MISTRAL, "[TOOL_CALLS] [{]"),
        (DEEPSEEK, "<｜tool▁calls▁begin｜>look<｜tool▁calls▁end｜>"),
        (PLAIN, '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        (PLAIN, "a < b"),
    ],
)
def test_what_only_looks_like_a_call_is_text_to_the_last_letter(family: Family, written: str) -> None:
    said, _ = read(family, list(written))
    assert (said.text, said.calls) == (written, ())


def test_thoughts_that_the_prompt_opened_or_that_never_end() -> None:
    assert read(PLAIN, ["so\n</think>\n\n4"], thinking=True)[0] == Said(speaker="assistant", text="4", reasoning="so")
    assert read(PLAIN, ["<think>on and"])[0] == Said(speaker="assistant", reasoning="on and")
    later = "4 <think>not a thought</think>"
    assert read(PLAIN, [later])[0] == Said(speaker="assistant", text=later)


SNIPPETS = st.sampled_from(
    [
        "<think>",
        "</think>",
        "<tool_call>",
        "</tool_call>",
        '{"name": "f", "arguments": {"x": "<"}}',
        "[TOOL_CALLS]",
        "[ARGS]",
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<arg_key>at</arg_key>",
        "<arg_value>sky</arg_value>",
        "<|start|>assistant",
        "<|channel|>analysis",
        " to=functions.f",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<",
        "\n",
        " ",
        "ab",
        "{",
        "}",
        ";",
        "[",
        "]",
    ]
)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from(sorted(BY_NAME)),
    st.lists(SNIPPETS, max_size=12).map("".join),
    st.lists(st.integers(1, 7), min_size=1, max_size=8),
    st.booleans(),
)
def test_however_it_comes_it_is_read_alike(name: str, written: str, sizes: list[int], thinking: bool) -> None:
    family = BY_NAME[name]
    parts, at = [], 0
    for size in itertools.cycle(sizes):
        if at >= len(written):
            break
        parts.append(written[at : at + size])
        at += size
    whole, _ = read(family, [written], thinking=thinking)
    said, pieces = read(family, parts, thinking=thinking)
    assert said == whole
    assert "".join(piece.text for piece in pieces) == said.text
    assert "".join(piece.reasoning for piece in pieces) == said.reasoning
    assert tuple(piece.call for piece in pieces if piece.call is not None) == said.calls


@pytest.mark.parametrize(
    ("template", "family"),
    [
        ("qwen2.5", HERMES),
        ("qwen3", HERMES),
        ("llama3", LLAMA),
        ("mistral", MISTRAL),
        ("deepseek", DEEPSEEK),
        ("smollm2", PLAIN),
        ("gemma", PLAIN),
        ("phi", PLAIN),
        ("glm", GLM),
        ("gpt-oss", HARMONY),
    ],
)
def test_the_template_shows_the_family(template: str, family: Family) -> None:
    render = tokenizer_of(template).render
    assert render is not None
    assert family_of(lambda messages: render(messages, {})) is family
