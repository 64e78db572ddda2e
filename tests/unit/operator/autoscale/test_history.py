"""What is remembered, and what a restart leaves of it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.support.operator.evidence import NOW, auto, fleet, home, report
from trimtab.api.autoscaling import AutoscalingStatus, PoolDecision
from trimtab.operator.autoscale.history import Change, History, Size, decided, mean_ready, observed, restored


def seen(history: History, size: int, *, at: float, reported: float | None = None, ready: int | None = None) -> History:
    reports = [] if reported is None else [report(at=reported, first_step=int(reported))]
    return observed(history, config=auto(), fleet=fleet(home(size, ready=ready)), reports=reports, now=at)


def test_sizes_are_averaged_over_the_time_they_held() -> None:
    sizes = [Size(since=0.0, ready={"home": 2}), Size(since=75.0, ready={"home": 6})]
    assert mean_ready(sizes, start=0.0, end=100.0) == {"home": 3}
    assert mean_ready(sizes, start=50.0, end=70.0) == {"home": 2}


def test_a_time_that_was_hardly_watched_has_no_average() -> None:
    sizes = [Size(since=60.0, ready={"home": 2})]
    assert mean_ready(sizes, start=0.0, end=100.0) is None
    assert mean_ready(sizes, start=40.0, end=100.0) == {"home": 2}
    assert mean_ready([], start=0.0, end=1.0) is None


def test_a_report_is_taken_once_and_a_change_within_it_unsettles_it() -> None:
    history = seen(restored(None, now=NOW - 500), 8, at=NOW - 500)
    history = seen(history, 8, at=NOW, reported=NOW)
    history = seen(history, 8, at=NOW + 15, reported=NOW)
    assert [window.settled for window in history.windows["solver"]] == [True]
    history = seen(history, 9, at=NOW + 50, reported=NOW)
    history = seen(history, 9, at=NOW + 100, reported=NOW + 100)
    assert [window.settled for window in history.windows["solver"]] == [True, False]
    assert history.windows["solver"][-1].ready["home"] == pytest.approx(8.5)


def test_the_memory_is_bounded_and_keeps_what_measures() -> None:
    history = restored(None, now=0.0)
    for number in range(1, 400):
        history = seen(history, 8 + number % 2, at=100.0 * number, reported=100.0 * number)
    assert len(history.windows["solver"]) <= 21
    assert len(history.sizes) <= 256


def test_somebody_elses_scaling_is_noticed_once_and_cools_down() -> None:
    history = decided(
        seen(restored(None, now=NOW), 8, at=NOW),
        config=auto(),
        fleet=fleet(home(8)),
        wanted={"home": 8},
        targets={"home": 8},
        now=NOW,
    )
    assert history.by_hand is None
    history = seen(history, 3, at=NOW + 10)
    assert history.by_hand is not None
    assert (history.by_hand.pool, history.by_hand.before, history.by_hand.after) == ("home", 8, 3)
    assert history.changes == (Change(at=NOW + 10, added=0, removed=5),)
    assert history.cooldown_until == NOW + 10 + auto().cooldown_seconds
    assert seen(history, 3, at=NOW + 20).changes == history.changes


def test_a_dry_run_changes_nothing() -> None:
    history = decided(
        restored(None, now=NOW),
        config=auto(mode="DryRun"),
        fleet=fleet(home(8)),
        wanted={"home": 4},
        targets={"home": 4},
        now=NOW,
    )
    assert (history.changes, history.cooldown_until, history.targets) == ((), 0.0, {})


def test_a_restart_keeps_the_last_change_and_the_cool_down() -> None:
    at = datetime.fromtimestamp(NOW, tz=UTC)
    status = AutoscalingStatus(
        mode="Auto",
        current=8,
        recommended=8,
        bounded=8,
        reason="WithinBand",
        message="",
        pools=(PoolDecision(name="home", current=6, target=8),),
        last_scale_time=at,
        cooldown_until=at,
    )
    history = restored(status, now=NOW + 5)
    assert history.since == NOW + 5
    assert history.changes == (Change(at=NOW, added=None, removed=None),)
    assert (history.targets, history.cooldown_until) == ({"home": 8}, NOW)
    assert restored(status.model_copy(update={"mode": "DryRun"}), now=NOW).targets == {}
