"""Capacity needed, from windows."""

from __future__ import annotations

import pytest

from tests.support.operator.evidence import fleet, home, window
from trimtab.operator.autoscale.need import Need, growth_ahead, need_of
from trimtab.operator.autoscale.windows import Window


def need(*windows: Window) -> Need:
    return need_of(windows, fleet=fleet(home(8)), weights={"home": 1.0}, tau_low=0.05, tau_high=0.10)


def test_a_starving_trainer_measures_as_in_the_paper() -> None:
    assert need(window(wait=0.2)).measured == pytest.approx(10)  # 8 / 0.8


def test_a_falling_buffer_measures_before_anybody_waits() -> None:
    assert need(window(accepted=800)).measured == pytest.approx(10)


def test_one_odd_window_changes_nothing() -> None:
    usual = [window(accepted=1000) for _ in range(4)]
    assert need(*usual, window(accepted=500), window()).measured == pytest.approx(8)


def test_a_starving_trainer_is_believed_by_half_at_once() -> None:
    usual = [window() for _ in range(4)]
    assert need(*usual, window(wait=0.2, seconds=125.0)).measured == pytest.approx(9)  # between 8 and 10
    assert need(*usual, window(wait=0.9, seconds=1000.0)).measured == pytest.approx(
        12
    )  # between 8 and, at most, twice that


def test_old_measurements_are_put_on_the_load_of_today() -> None:
    longer = need(window(accepted=800), window(tokens=120, busy=0.5, ready=14))
    assert longer.measured == pytest.approx(12)
    assert longer.of_this_load
    shorter = need(window(accepted=800), window(tokens=50, busy=0.5))
    assert shorter.measured == pytest.approx(5)
    assert not shorter.of_this_load


def test_what_a_later_window_got_by_without_is_given_up() -> None:
    contradicted = need(window(accepted=800), window(busy=0.5, ready=8))
    assert (contradicted.measured, contradicted.enough) == (None, 8)
    within_noise = need(window(accepted=950), window(busy=0.5, ready=8))
    assert within_noise.measured == pytest.approx(8 / 0.95)


def test_unsettled_windows_count_only_when_the_trainer_clearly_starves() -> None:
    assert need(window(wait=0.3, settled=False)).measured is None
    assert need(window(wait=0.5, settled=False)).measured == pytest.approx(16)
    assert need(window(wait=0.5, settled=False), window(busy=0.5, ready=20)).measured is None


def test_a_fleet_of_nothing_measures_nothing() -> None:
    assert need(window(wait=1.0, ready=0)).measured is None


def test_growth_is_looked_ahead_only_when_pods_start_slowly() -> None:
    rising = [window(tokens=100 * 1.1**n, at=100.0 * n) for n in range(5)]
    assert growth_ahead(rising, startup_s=40.0) == 1.0
    assert growth_ahead(rising, startup_s=200.0) == pytest.approx(1.2)
    assert growth_ahead(rising, startup_s=10_000.0) == 1.5
    assert growth_ahead(rising[:2], startup_s=200.0) == 1.0
    assert growth_ahead([window(at=100.0 * n, tokens=100 - n) for n in range(5)], startup_s=200.0) == 1.0
