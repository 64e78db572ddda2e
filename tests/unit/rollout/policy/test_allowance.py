"""How many tasks a worker may have: all when it is fresh and fast, none when its samples would be too old at birth."""

from __future__ import annotations

import pytest

from trimtab.rollout.allowance import allowance


@pytest.mark.parametrize(
    ("lag", "versions_per_group", "max_staleness", "expected"),
    [
        (0, 0.0, 8, 16),
        (0, 9.0, 8, 16),
        (0, 18.0, 8, 8),
        (0, 1e9, 8, 1),
        (3, 0.0, 8, 16),
        (3, 12.0, 8, 8),
        (6, 0.0, 8, 10),
        (8, 0.0, 8, 3),
        (9, 0.0, 8, 0),
        (50, 0.0, 8, 0),
        (0, 0.5, 0, 16),
        (0, 2.0, 0, 8),
        (1, 0.0, 0, 0),
    ],
)
def test_sixteen_tasks_at_most(lag: int, versions_per_group: float, max_staleness: int, expected: int) -> None:
    assert allowance(16, lag=lag, versions_per_group=versions_per_group, max_staleness=max_staleness) == expected


def test_it_never_grows_with_lag_or_slowness_and_is_zero_only_without_room() -> None:
    for max_staleness in range(6):
        for pace in (0.0, 0.5, 1.0, 3.0, 10.0, 100.0):
            by_lag = [
                allowance(7, lag=lag, versions_per_group=pace, max_staleness=max_staleness)
                for lag in range(max_staleness + 3)
            ]
            assert by_lag == sorted(by_lag, reverse=True)
            assert [count > 0 for count in by_lag] == [lag <= max_staleness for lag in range(max_staleness + 3)]
            slower = allowance(7, lag=0, versions_per_group=2 * pace, max_staleness=max_staleness)
            assert slower <= by_lag[0] <= 7
