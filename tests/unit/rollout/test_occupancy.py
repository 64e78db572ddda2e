"""The mean number of tasks is weighted by time."""

from __future__ import annotations

import pytest

from trimtab.rollout.occupancy import Occupancy


def test_it_is_the_mean_over_the_time_since_the_last_look() -> None:
    now = 0.0
    occupancy = Occupancy(clock=lambda: now)
    assert occupancy.since_last() == 0.0
    occupancy.note(4)
    now = 1.0
    occupancy.note(0)
    now = 4.0
    assert occupancy.since_last() == pytest.approx(1.0)
    occupancy.note(2)
    now = 6.0
    assert occupancy.since_last() == pytest.approx(2.0), "what was before the last look counts no more"
    now = 8.0
    assert occupancy.since_last() == pytest.approx(2.0), "what it still has goes on counting"
