"""Our policy, case by case. A window is ten steps and 100 s, 8 replicas are there unless said otherwise."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.evidence import auto, fleet, home, window
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.distribution import Want
from trimtab.operator.autoscale.trim import trim
from trimtab.operator.autoscale.windows import Window


def want(*windows: Window, desired: int = 8, **pool: Any) -> Want:
    pools = fleet(home(desired, **pool))
    return trim(windows, fleet=pools, weights={"home": 1.0}, config=auto())


def test_a_starving_trainer_gets_what_keeps_pace() -> None:
    said = want(window(wait=0.2))
    assert (said.branch, said.reason) == (Branch.GROW, "TrainerStarving")
    assert said.capacity == pytest.approx(10 * 0.975)
    assert (
        said.message == "the trainer of solver waits 20 % of its time and would wait 20 % for good with what it has; "
        "samples for 0.0 steps are in the buffer"
    )


def test_what_is_on_its_way_is_not_ordered_again() -> None:
    said = want(window(wait=0.2), desired=10)
    assert (said.branch, said.capacity, said.reason) == (Branch.HOLD, 10, "CapacityArriving")


def test_more_is_ordered_before_the_buffer_is_empty_and_not_long_before() -> None:
    falling: dict[str, Any] = {"accepted": 850}
    plenty = want(window(**falling, buffered=500))
    assert plenty.branch is Branch.HOLD
    low = want(window(**falling, buffered=200))
    assert (low.branch, low.reason) == (Branch.GROW, "BufferRunningDry")
    slow_pods = want(window(**falling, buffered=500), startup_s=300.0)
    assert slow_pods.branch is Branch.GROW


def test_a_little_waiting_is_no_reason_to_grow_unless_it_lasts() -> None:
    assert want(window(wait=0.04)).branch is Branch.HOLD
    waits = window(wait=0.07, seconds=100 / 0.93)
    once = want(window(), window(), waits)
    assert (once.branch, once.reason) == (Branch.HOLD, "WithinBand")
    assert want(window(), waits, waits).branch is Branch.GROW


def test_more_than_needed_goes_down_to_what_keeps_pace() -> None:
    said = want(window(accepted=1600, buffered=300))
    assert (said.branch, said.reason, said.capacity) == (Branch.SHRINK, "MoreThanNeeded", pytest.approx(5))


def test_less_is_tried_while_the_buffer_pays_for_it() -> None:
    held_back: dict[str, Any] = {"busy": 0.95, "busy_before": 0.5}
    said = want(window(**held_back, buffered=300))
    assert (said.branch, said.reason) == (Branch.SHRINK, "TryingLess")
    assert said.capacity == pytest.approx(8 * 0.8)
    assert want(window(**held_back, buffered=50)).branch is Branch.HOLD
    assert want(window(**held_back, buffered=300, settled=False)).branch is Branch.HOLD


def test_less_is_not_tried_while_the_buffer_falls() -> None:
    usual: dict[str, Any] = {"busy": 0.45, "busy_before": 0.45, "buffered": 600, "ready": 2}
    assert want(window(**usual), desired=2).reason == "TryingLess"
    assert want(window(**usual, accepted=900), desired=2).branch is Branch.HOLD


def test_a_need_of_slow_tools_is_forgotten_when_engines_have_idled_for_long() -> None:
    """The window in which the tool became fast still starves, and ends with idle engines."""
    became_fast = window(wait=0.42, accepted=1333, consumed=1333, busy=0.08, ready=3)
    idle = window(busy=0.05, busy_before=0.05, ready=3)
    first_idle = window(busy=0.05, busy_before=0.08, ready=3)
    assert want(became_fast, first_idle, *[idle] * 5, desired=3).capacity > 2, "three replicas, in whole ones"
    said = want(became_fast, first_idle, *[idle] * 12, desired=3)
    assert (said.branch, said.reason, said.capacity) == (Branch.SHRINK, "EnginesIdle", 2)


def test_what_was_measured_at_this_load_is_not_tried_again() -> None:
    said = want(window(wait=0.04, ready=7, seconds=100 / 0.96), window(busy=0.5, buffered=800))
    assert said.branch is Branch.SHRINK
    assert said.capacity == pytest.approx(7 / 0.96)  # no whole replica of 8


def test_without_a_count_of_the_buffer_the_margin_of_the_manifest_holds() -> None:
    said = want(window(busy=0.5, buffered=None), desired=10)
    assert said.capacity == pytest.approx(8 * 1.1)
