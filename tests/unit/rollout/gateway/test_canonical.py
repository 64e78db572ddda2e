"""Messages that an SDK wrote anew are the same ones; those that an agent changed are not."""

from __future__ import annotations

import pytest

from trimtab.rollout.gateway.canonical import flattened, keys_of, thoughts_agree
from trimtab.rollout.gateway.exchange import Refused, Said, ToolCall


def asked(call_id: str, arguments: str, *, name: str = "look") -> Said:
    return Said(speaker="assistant", calls=(ToolCall(call_id=call_id, name=name, arguments=arguments),))


def told(call_id: str, text: str = "seen") -> Said:
    return Said(speaker="tool", text=text, answers=call_id)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1, "b": [2.0]}', '{"b":[2],"a":1}'),
        ('{"a": "\\u00e9"}', '{"a": "é"}'),
        ("", "{}"),
        ('{"a": 1e3}', '{"a": 1000}'),
    ],
)
def test_arguments_are_compared_as_json(one: str, other: str) -> None:
    assert keys_of([asked("x", one)]) == keys_of([asked("x", other)])


@pytest.mark.parametrize(
    ("one", "other"),
    [('{"a": 1}', '{"a": true}'), ('{"a": 1}', '{"a": "1"}'), ("{a", "{b"), ("[1,2]", "[2,1]")],
)
def test_arguments_that_mean_something_else_differ(one: str, other: str) -> None:
    assert keys_of([asked("x", one)]) != keys_of([asked("x", other)])


def test_ids_may_be_renamed_but_not_exchanged() -> None:
    def history(first: str, second: str, *answers: str) -> list[Said]:
        calls = tuple(ToolCall(call_id=each, name="look", arguments="{}") for each in (first, second))
        return [Said(speaker="assistant", calls=calls), *(told(each) for each in answers)]

    assert keys_of(history("a", "b", "a", "b")) == keys_of(history("toolu_1", "toolu_2", "toolu_1", "toolu_2"))
    assert keys_of(history("a", "b", "a", "b")) != keys_of(history("a", "b", "b", "a"))


@pytest.mark.parametrize("changed", ["Hello ", "hello", "Hello\n", ""])
def test_text_agrees_to_the_last_space(changed: str) -> None:
    assert keys_of([Said(speaker="user", text="Hello")]) != keys_of([Said(speaker="user", text=changed)])


def test_thoughts_may_be_dropped_but_not_changed() -> None:
    recorded = Said(speaker="assistant", text="4", reasoning="2+2")
    assert thoughts_agree(Said(speaker="assistant", text="4"), recorded)
    assert thoughts_agree(recorded, recorded)
    assert not thoughts_agree(Said(speaker="assistant", text="4", reasoning="1+3"), recorded)


def test_lists_of_parts_are_the_text_that_they_make() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, "c"]
    assert flattened(parts, field="messages[0].content") == "abc"
    assert flattened(None, field="content") == ""


def test_a_part_without_text_is_refused_by_its_place() -> None:
    with pytest.raises(Refused, match=r"messages\[2\].content\[1\] is of type 'image_url'"):
        flattened([{"type": "text", "text": "a"}, {"type": "image_url"}], field="messages[2].content")
    with pytest.raises(Refused, match="content is a int"):
        flattened(3, field="content")
