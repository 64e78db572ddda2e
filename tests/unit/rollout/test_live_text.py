"""Text that comes token by token is the text of all tokens, whatever came together."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.gateway.tokenizers import end_of_turn, tokenizer_of
from trimtab.rollout.live_text import LiveText, StopGuard

BYTES = tokenizer_of("smollm2")
SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=40)


def in_parts(token_ids: Sequence[int], sizes: Sequence[int]) -> list[list[int]]:
    """Of these sizes, over and over."""
    parts, rest, number = [], list(token_ids), 0
    while rest:
        size = sizes[number % len(sizes)]
        parts.append(rest[:size])
        rest, number = rest[size:], number + 1
    return parts


@given(text=st.text(max_size=40), sizes=SIZES)
@example(text="né 你好 🙂🙂", sizes=[1])
def test_no_character_is_shown_before_it_is_whole(text: str, sizes: list[int]) -> None:
    live = LiveText(BYTES.decode)
    shown = [live.feed(part) for part in in_parts(BYTES.encode(text), sizes)]
    assert "\ufffd" in text or not any("\ufffd" in part for part in shown)
    assert "".join([*shown, live.feed([], last=True)]) == text


@given(token_ids=st.lists(st.integers(0, 255), max_size=60), sizes=SIZES)
def test_bytes_that_are_no_text_are_shown_as_they_are_read_at_once(token_ids: list[int], sizes: list[int]) -> None:
    live = LiveText(BYTES.decode)
    shown = "".join([*(live.feed(part) for part in in_parts(token_ids, sizes)), live.feed([], last=True)])
    assert shown == BYTES.decode(token_ids)


def test_nonsense_is_not_held_back_for_ever() -> None:
    live = LiveText(BYTES.decode)
    lone = BYTES.encode("é")[1]
    assert any(live.feed([lone]) for _ in range(100))


def test_marks_say_nothing_and_keep_nothing_back() -> None:
    live = LiveText(BYTES.decode)
    mark = end_of_turn("smollm2")
    parts = [BYTES.encode("a"), [mark], [mark], BYTES.encode("é")[:1], BYTES.encode("é")[1:], [mark], BYTES.encode("b")]
    assert [live.feed(part) for part in parts] == ["a", "", "", "", "é", "", "b"]


@given(parts=st.lists(st.text("ab", max_size=4), max_size=12), stop=st.text("ab", min_size=1, max_size=4))
def test_a_text_is_let_through_up_to_its_stop_text(parts: list[str], stop: str) -> None:
    guard = StopGuard((stop,))
    shown = [guard.feed(part) for part in parts]
    shown.append(guard.feed("", last=True))
    assert "".join(shown) == "".join(parts).partition(stop)[0]


def test_only_what_may_begin_a_stop_text_is_held_back() -> None:
    guard = StopGuard(("</a>", "END"))
    assert [guard.feed(part) for part in ("x<", "/", "b", "E", "ND", "more")] == ["x", "", "</b", "", "", ""]
    assert guard.feed("", last=True) == ""
