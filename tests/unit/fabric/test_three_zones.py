"""The three-zone rule, case by case."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.fabric.three_zones import three_zones
from trimtab.fabric.wire.balance import Branch


def decide(
    w: float, *, current: int, accepted: int = 100, consumed: int = 100, margin: float = 1.1
) -> tuple[Branch, int]:
    return three_zones(
        wait_fraction=w,
        current=current,
        accepted=accepted,
        consumed=consumed,
        tau_low=0.05,
        tau_high=0.10,
        shrink_margin=margin,
    )


@pytest.mark.parametrize(
    ("w", "current", "accepted", "consumed", "expected"),
    [
        (0.2, 4, 100, 100, (Branch.GROW, 5)),
        (0.5, 4, 0, 0, (Branch.GROW, 8)),
        (0.11, 8, 100, 100, (Branch.GROW, 9)),
        (1.0, 2, 0, 0, (Branch.GROW, 200)),
        (0.10, 8, 100, 100, (Branch.HOLD, 8)),
        (0.07, 8, 100, 100, (Branch.HOLD, 8)),
        (0.05, 8, 200, 100, (Branch.HOLD, 8)),
        (0.0, 8, 200, 100, (Branch.SHRINK, 5)),
        (0.0, 20, 220, 100, (Branch.SHRINK, 10)),
        (0.0, 8, 100, 100, (Branch.SHRINK, 8)),
        (0.0, 8, 0, 100, (Branch.HOLD, 8)),
        (0.0, 8, 100, 0, (Branch.HOLD, 8)),
        (0.0, 0, 100, 100, (Branch.SHRINK, 0)),
    ],
)
def test_zones(w: float, current: int, accepted: int, consumed: int, expected: tuple[Branch, int]) -> None:
    assert decide(w, current=current, accepted=accepted, consumed=consumed) == expected


@given(st.floats(0, 1), st.integers(0, 10_000), st.integers(0, 10**6), st.integers(0, 10**6))
def test_it_grows_only_when_starved_and_never_shrinks_to_nothing(
    w: float, current: int, accepted: int, consumed: int
) -> None:
    branch, target = decide(w, current=current, accepted=accepted, consumed=consumed)
    assert (target > current) <= (branch is Branch.GROW) == (w > 0.10)
    assert (target < current) <= (branch is Branch.SHRINK)
    assert target >= min(1, current)
