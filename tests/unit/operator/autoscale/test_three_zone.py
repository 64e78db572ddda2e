"""The published formula in devices, with values computed by hand."""

from __future__ import annotations

import pytest

from tests.support.operator.evidence import auto, fleet, home, report
from trimtab.fabric.wire.balance import Branch
from trimtab.operator.autoscale.three_zone import three_zone


@pytest.mark.parametrize(
    ("wait", "accepted", "consumed", "branch", "capacity"),
    [
        pytest.param(0.25, 100, 100, Branch.GROW, 11, id="8 / 0.75 = 10.67"),
        pytest.param(0.101, 100, 100, Branch.GROW, 9, id="8 / 0.899 = 8.9"),
        pytest.param(0.10, 100, 100, Branch.HOLD, 8, id="tauHigh itself holds"),
        pytest.param(0.05, 200, 100, Branch.HOLD, 8, id="tauLow itself holds"),
        pytest.param(0.02, 200, 100, Branch.SHRINK, 5, id="8 · 0.5 · 1.1 = 4.4"),
        pytest.param(0.0, 1000, 999, Branch.SHRINK, 8, id="never more than there is"),
        pytest.param(0.0, 0, 100, Branch.HOLD, 8, id="nothing was made"),
        pytest.param(0.0, 100, 0, Branch.HOLD, 8, id="nothing was taken"),
    ],
)
def test_zones(wait: float, accepted: int, consumed: int, branch: Branch, capacity: float) -> None:
    want = three_zone(report(wait=wait, accepted=accepted, consumed=consumed), fleet=fleet(home(8)), config=auto())
    assert (want.branch, want.capacity) == (branch, capacity)


def test_it_counts_devices() -> None:
    pools = fleet(home(2, name="large", devices=4), home(4, name="small"))
    want = three_zone(report(wait=0.25, pools={"large": 2, "small": 4}), fleet=pools, config=auto())
    assert want.capacity == 16  # 12 / 0.75


def test_what_was_ordered_since_the_report_is_neither_ordered_again_nor_given_up() -> None:
    ordered = fleet(home(11, ready=8))
    assert three_zone(report(wait=0.25), fleet=ordered, config=auto()).capacity == 11
    assert three_zone(report(wait=0.07), fleet=ordered, config=auto()).capacity == 11


def test_what_is_replayed_asks_for_no_rollouts() -> None:
    want = three_zone(report(accepted=200, consumed=200, replayed=100), fleet=fleet(home(8)), config=auto())
    assert want.capacity == 5
