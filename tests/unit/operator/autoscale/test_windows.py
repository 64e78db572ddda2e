"""What a window says about the fleet."""

from __future__ import annotations

import pytest

from tests.support.operator.evidence import report, window
from trimtab.operator.autoscale.windows import Window, usual_speeds, window_of


@pytest.mark.parametrize(
    ("given", "measures"),
    [
        pytest.param(window(), True, id="engines busy from beginning to end"),
        pytest.param(window(busy=0.5), False, id="free places at the end"),
        pytest.param(window(busy_before=0.5), False, id="free places at the beginning"),
        pytest.param(window(busy=0.5, wait=0.04), True, id="the trainer waited"),
        pytest.param(window(busy=0.5, accepted=880), True, id="the buffer fell"),
        pytest.param(window(busy=0.3, busy_before=0.4, accepted=880), False, id="it fell, but not for want of engines"),
        pytest.param(window(busy=None, accepted=1060), True, id="nobody counts places and the buffer rose"),
        pytest.param(window(busy=None), False, id="nobody counts places and all was balanced"),
    ],
)
def test_a_window_measures_when_rollout_did_what_it_could(given: Window, measures: bool) -> None:
    assert given.measures(tau_low=0.05) is measures


def test_figures_by_hand() -> None:
    seen = window(wait=0.2, accepted=900, consumed=1000, buffered=250, seconds=100.0)
    assert seen.demand == pytest.approx(12.5)  # 1000 in 80 s of work
    assert seen.kept_pace == pytest.approx(0.72)  # 9 of 12.5
    assert seen.steps_in_reserve == pytest.approx(2.5)
    assert seen.load == pytest.approx(1250)


def test_a_window_without_consumption_has_no_pace() -> None:
    assert window(consumed=0).kept_pace is None
    assert window(accepted=0).kept_pace is None
    assert window(consumed=0).steps_in_reserve is None


def test_from_a_report() -> None:
    before = window_of(report(in_flight=4), ready=None, settled=True, before=None)
    after = window_of(report(first_step=20, at=2e6), ready={"home": 7.5}, settled=True, before=before)
    assert (before.busy, before.busy_before, before.ready) == (0.5, None, {"home": 8})
    assert (after.busy, after.busy_before, after.ready, after.tokens) == (1.0, 0.5, {"home": 7.5}, 100.0)


def test_the_first_window_is_never_settled() -> None:
    assert not window_of(report(first_step=0), ready=None, settled=True, before=None).settled


def test_speeds_are_averaged_over_windows() -> None:
    seen = window_of(report(), ready=None, settled=True, before=None)
    assert usual_speeds([seen, seen]) == {"home": 1.0}
