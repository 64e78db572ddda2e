from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.operator.untrusted import MAX_NAME, Names, printable, shown_name


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("math-home-0", "math-home-0"),
        ("two\nlines\tand a bell\x07", "two lines and a bell"),
        ("\u202eright to left\u2069", "right to left"),
        ("invisible\u200b\U000e0041", "invisible"),
        ("half a pair \ud800", "half a pair"),
        ("größer", "größer"),
        ("a" * 11, "aaaaaaaaa…"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    limit = 10 if text == "a" * 11 else 100

    assert printable(text, limit=limit) == shown


@given(st.text(st.characters(codec=None)), st.integers(1, 50))
def test_it_is_printable_and_short_whatever_it_was(text: str, limit: int) -> None:
    shown = printable(text, limit=limit)

    assert shown.isprintable()
    assert len(shown) <= limit


def test_names_are_found_by_what_is_shown() -> None:
    long = "x" * 200
    names = Names.of(["plain", "odd\n", long])

    assert names.find("plain") == "plain"
    assert names.find("odd") == "odd\n"
    assert names.find(shown_name(long)) == long
    assert names.find("absent") is None


def test_names_that_look_alike_or_like_nothing_are_not_found() -> None:
    names = Names.of(["a", "a\u200b", "\x00", "y" * MAX_NAME + "1", "y" * MAX_NAME + "2"])

    assert [names.find(look) for look in ("a", "", shown_name("y" * MAX_NAME + "1"))] == [None, None, None]
