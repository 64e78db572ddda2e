"""When what ended may start again: ever later, never all at once, and soon again after a good while."""

from __future__ import annotations

import ast
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.restarts import Again, RestartPolicy

ROOT = Path(__file__).parents[3]


def policy(position: float = 0.0) -> RestartPolicy:
    """Random numbers are at this part of their range."""
    backoff = FullJitter(base_s=1.0, cap_s=30.0, uniform=lambda low, high: low + position * (high - low))
    return RestartPolicy(backoff=backoff, stable_s=30.0, gives_up=lambda code: code == 78)


@pytest.mark.parametrize(
    ("crashes", "soonest", "latest"),
    [(0, 0.5, 1.0), (1, 1.0, 2.0), (2, 2.0, 4.0), (9, 15.0, 30.0), (10**6, 15.0, 30.0)],
)
def test_each_end_in_a_row_doubles_the_wait_up_to_the_longest(crashes: int, soonest: float, latest: float) -> None:
    for position, wait in ((0.0, soonest), (1.0, latest)):
        again = policy(position).after(crashes, exit_code=1, lived_s=0.1, now=100.0)
        assert again == Again(at=100.0 + wait, crashes=crashes + 1)


@pytest.mark.parametrize(("lived_s", "crashes"), [(29.9, 6), (30.0, 1), (1e9, 1)])
def test_one_that_lived_long_enough_begins_anew(lived_s: float, crashes: int) -> None:
    again = policy().after(5, exit_code=1, lived_s=lived_s, now=0.0)
    assert again is not None
    assert again.crashes == crashes


def test_an_exit_code_may_be_the_last_word_and_a_failed_start_never_is() -> None:
    assert policy().after(0, exit_code=78, lived_s=1e9, now=0.0) is None
    assert policy().after(0, exit_code=None, lived_s=0.0, now=0.0) is not None


def test_the_wait_that_is_left_is_never_negative() -> None:
    again = Again(at=10.0, crashes=1)
    assert (again.wait_s(4.0), again.wait_s(10.0), again.wait_s(11.0)) == (6.0, 0.0, 0.0)


@given(seed=st.integers(), crashes=st.integers(0, 100))
def test_a_fleet_that_ended_together_does_not_come_back_together(seed: int, crashes: int) -> None:
    draw = random.Random(seed)
    members = RestartPolicy(backoff=FullJitter(base_s=1.0, cap_s=30.0, uniform=draw.uniform), stable_s=30.0)
    starts = sorted(members.again(crashes, lived_s=0.0, now=0.0).at for _ in range(100))
    ceiling = members.backoff.ceiling_s(crashes)
    assert ceiling / 2 <= starts[0]
    assert starts[-1] <= ceiling
    # Spread over the second half of the ceiling: no tenth of it has more than a third of them.
    tenth = ceiling / 20
    assert max(sum(start <= other < start + tenth for other in starts) for start in starts) < 34


_MAY_DOUBLE = {
    "swap.py": "how long stragglers are waited for, which holds nobody else up",
    "kv_rows.py": "memory, not time",
}


def test_nobody_doubles_a_wait_by_hand() -> None:
    """A wait that doubles without jitter brings a fleet back at once: FullJitter and RestartPolicy are there for it."""
    found = set()
    for part in ("runtime", "operator"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Assign(value=ast.Call(func=ast.Name(id="min"), args=[ast.BinOp(op=ast.Mult()), *_])):
                        found.add(path.name)
                    case ast.AugAssign(op=ast.Mult(), value=ast.Constant(value=2)):
                        found.add(path.name)
    assert found == set(_MAY_DOUBLE)
