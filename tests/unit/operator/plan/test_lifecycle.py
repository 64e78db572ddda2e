"""A job whose first groups all fail alike ends; one in which anything works goes on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from trimtab.api.conditions import ConditionType
from trimtab.api.job import RLJobStatus
from trimtab.operator.conditions import find
from trimtab.operator.plan.job import Observed, plan_job
from trimtab.operator.plan.lifecycle import GivenUp, hopeless
from trimtab.operator.plan.progress import JobReport

JOB = job(failurePolicy={"failedGroups": 3})


def gave_up(*numbers: int, **fields: Any) -> list[GivenUp]:
    given = {
        "error": "workflow-error", "message": "KeyError: 'answer'", "where": "my.py, line 7, in run", "at": 100.0,
    }  # fmt: skip
    return [GivenUp(number=number, **{**given, **fields}) for number in numbers]


def test_it_ends_with_the_error_and_its_line() -> None:
    report = JobReport(given_up=tuple(gave_up(2, 0, 1)))
    said = find(plan_job(JOB, Observed(report=report), now=0.0).status.conditions, ConditionType.SUCCEEDED)
    assert said is not None
    assert (said.status, said.reason) == ("False", "GroupsFailed")
    for part in ("first 3 prompt groups", "my.py, line 7, in run", "KeyError: 'answer'", "failurePolicy.failedGroups"):
        assert part in said.message, part


@pytest.mark.parametrize(
    "given_up",
    [
        pytest.param(gave_up(0, 1), id="too few"),
        pytest.param(gave_up(0, 2, 4), id="those between them did not fail"),
        pytest.param([*gave_up(0, 1), *gave_up(2, where="my.py, line 9, in run")], id="at another line"),
        pytest.param([*gave_up(0, 1), *gave_up(2, error="no-room")], id="in another way"),
        pytest.param(gave_up(0, 1, 2, 3, error="engine-unavailable"), id="an engine that may come back"),
    ],
)
def test_it_goes_on_where_there_is_hope(given_up: list[GivenUp]) -> None:
    assert hopeless(JOB, given_up, any_completed=False) is None


def test_it_goes_on_once_anything_was_completed() -> None:
    assert hopeless(JOB, gave_up(0, 1, 2), any_completed=True) is None


def test_a_job_that_has_trained_is_not_judged_by_an_operator_that_has_just_begun_to_listen() -> None:
    trained = JOB.model_copy(update={"status": RLJobStatus(step=4)})
    report = JobReport(given_up=tuple(gave_up(0, 1, 2)))
    said = find(plan_job(trained, Observed(report=report), now=0.0).status.conditions, ConditionType.SUCCEEDED)
    assert said is not None
    assert said.status == "Unknown"


def test_one_line_brings_many_messages() -> None:
    many = [one for number in range(3) for one in gave_up(number, message=f"KeyError: 'row {number}'")]
    assert hopeless(JOB, many, any_completed=False) is not None
    placeless = [one for number in range(3) for one in gave_up(number, message=f"row {number}", where="")]
    assert hopeless(JOB, placeless, any_completed=False) is None
    assert hopeless(JOB, gave_up(0, 1, 2, where=""), any_completed=False) is not None


def test_a_resumed_job_is_not_judged_by_what_was_mended() -> None:
    resumed = JOB.model_copy(update={"status": RLJobStatus(start_time=datetime.fromtimestamp(200, UTC))})
    assert hopeless(resumed, gave_up(0, 1, 2), any_completed=False) is None
    assert hopeless(resumed, [*gave_up(0, 1, 2), *gave_up(3, 4, 5, at=201.0)], any_completed=False) is not None


def test_one_is_enough_where_the_manifest_says_so_and_none_ever_is() -> None:
    impatient = job(failurePolicy={"failedGroups": 1})
    assert "first prompt group failed" in (hopeless(impatient, gave_up(5), any_completed=False) or "")
    assert hopeless(job(failurePolicy={"failedGroups": 0}), gave_up(*range(99)), any_completed=False) is None


def test_a_message_of_any_length_is_bounded() -> None:
    why = hopeless(JOB, gave_up(0, 1, 2, message="x" * 4000), any_completed=False)
    assert why is not None
    assert len(why) < 1024
