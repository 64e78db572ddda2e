"""What replicas cost, by the prices of their pools: told step by step, through restarts, and in the summary."""

from __future__ import annotations

import msgspec
import pytest

from tests.support.cli.run_story import began, ended, fleet, step
from tests.support.dataflow.jobs import job
from trimtab.cli.chronicle.figures import figures
from trimtab.cli.chronicle.records import Record
from trimtab.cli.chronicle.spending import NOTHING, cost_per_hour
from trimtab.cli.chronicle.story import told
from trimtab.cli.tracking.points import Points

HOUR_S = 3600.0


def _at(record: Record, hours: float) -> Record:
    return msgspec.structs.replace(record, at=began().at + hours * HOUR_S)


def _cost(hours: float, per_hour: float | None) -> Record:
    return _at(fleet(0, ready=1, wanted=1, cost_per_hour=per_hour), hours)


RUN = [
    began(),
    _cost(0, 0.0),
    _cost(1, 2.0),
    _at(step(0), 2),
    _cost(3, 6.0),
    _at(step(1), 3.5),
    _at(ended("stopped", at=0), 4),
]


def test_only_pools_with_a_price_cost_anything() -> None:
    priced = job(pools=[{"name": "spot", "costPerHour": 0.5}, {"name": "own"}])
    assert cost_per_hour(priced, {"spot": 3, "own": 9}) == 1.5
    assert cost_per_hour(job(pools=[{"name": "own"}]), {"own": 9}) is None


def test_each_step_is_told_what_the_run_has_cost_so_far() -> None:
    points = Points()
    told_so_far = [point.values for record in RUN for point in points.of(record) if "fleet/cost" in point.values]
    assert [values["fleet/cost"] for values in told_so_far] == [2.0, 7.0]
    assert [values["solver/samples"] > 0 for values in told_so_far] == [True, True]


def test_a_run_that_goes_on_adds_to_it_and_the_pause_costs_nothing() -> None:
    spending = NOTHING
    for record in [*RUN, _at(began(), 100), _at(step(2), 101), _cost(102, 2.0), _at(step(3), 103)]:
        spending = spending.after(record)
    assert spending.total == 10.0 + 2.0
    # A process that tells a tracker later goes on with what it had kept.
    kept = msgspec.json.decode(msgspec.json.encode(spending), type=type(spending))
    points = Points(newest=3, spending=kept)
    (point,) = points.of(_at(step(4), 104))
    assert point.values["fleet/cost"] == pytest.approx(14.0)


def test_one_that_was_killed_counts_what_was_heard_of_it() -> None:
    spending = NOTHING
    for record in [began(), _cost(0, 2.0), _at(step(0), 1), _at(began(), 50)]:
        spending = spending.after(record)
    assert spending.total == 2.0


def test_the_summary_says_what_samples_cost_where_there_are_prices() -> None:
    (cost,) = [figure for figure in figures(told(RUN)) if figure.name == "cost"]
    assert cost.value == "10"
    assert "costPerHour" in cost.note
    assert "for 1,000 samples" in cost.note
    free = [_cost(hours, None) if hours else began() for hours in (0, 1)]
    assert all(figure.name != "cost" for figure in figures(told([*free, step(0), step(1)])))
