from __future__ import annotations

import pytest

from trimtab.devcluster.container.command import expanded

VARIABLES = {"A": "1", "B": "two words", "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("$(A)", "1"),
        ("--x=$(A)/$(B)", "--x=1/two words"),
        ("$(MISSING)", "$(MISSING)"),
        ("$(EMPTY)", ""),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$$$$(A)", "$$(A)"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A", "$(A"),
        ("$()", "$()"),
        ("a$$b", "a$b"),
    ],
)
def test_references_follow_the_rules_of_kubernetes(text: str, result: str) -> None:
    assert expanded(text, VARIABLES) == result


def test_a_value_is_not_expanded_again() -> None:
    assert expanded("$(A)", {"A": "$(B)", "B": "x"}) == "$(B)"
