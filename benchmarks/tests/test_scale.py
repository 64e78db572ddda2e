"""The benchmark of many ranks, with few of them: every row comes to exactly one, by leases and by the controller."""

from __future__ import annotations

import pytest

from benchmarks.scale import StepCost, bars, measure

ROWS = 128


@pytest.mark.slow
def test_every_rank_count_is_served_in_every_way() -> None:
    """It raises where a row is missing or comes to two ranks."""
    measured = measure(rank_counts=(2, 5), rows=ROWS, rounds=2)
    assert {ranks: len(costs) for ranks, costs in measured.costs.items()} == {2: 2, 5: 2}
    for cost in (cost for costs in measured.costs.values() for cost in costs):
        assert min(cost.lease_s, cost.rows_s, cost.controller_s, cost.requests_s) > 0


def cost(*, ranks: int, lease_s: float, service_cpu_s: float) -> StepCost:
    return StepCost(
        ranks=ranks,
        lease_s=lease_s,
        service_cpu_s=service_cpu_s,
        rows_s=1.0,
        controller_s=6.0,
        controller_cpu_s=4.0,
        requests_s=0.1,
    )


def test_bars_compare_rounds_that_ran_side_by_side() -> None:
    few = [cost(ranks=64, lease_s=seconds, service_cpu_s=0.2) for seconds in (0.1, 0.4, 0.2)]
    many = [cost(ranks=1024, lease_s=1.5 * one.lease_s, service_cpu_s=0.4) for one in few]
    rated = bars({64: few, 1024: many})
    assert rated["lease_time_1024_over_64"].value == pytest.approx(1.5)
    assert rated["service_cpu_s_a_step_1024"].value == pytest.approx(0.4)
    assert rated["controller_cpu_over_service_cpu_1024"].value == pytest.approx(10.0)
    assert all(bar.ok for bar in rated.values())
