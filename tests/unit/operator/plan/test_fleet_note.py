"""What a job's trackers are told of its fleet, from what statuses say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.support.dataflow.jobs import job
from tests.support.operator.objects import trainer
from tests.support.operator.scaling import NOW, SCALING, fleet, planned
from trimtab.api.conditions import LastError
from trimtab.api.job import RLJob
from trimtab.fabric.bus.fleet_note import MAX_TEXT, FleetNote
from trimtab.operator.plan.fleet_note import fleet_note

TRACKERS = [{"type": "tensorboard", "folder": "/curves"}]


def _job(*, mode: str = "Auto", tracking: Any = TRACKERS) -> RLJob:
    pools = [{"name": "local", "replicas": 2}]
    return job(autoscaling={**SCALING, "mode": mode}, pools=pools, tracking=tracking)


def _decided(of: RLJob, *, replicas: int = 2, now: float = NOW) -> RLJob:
    """With the status that a reconcile writes while the trainer starves."""
    plan = planned(of, fleet(of, replicas=replicas), now=now).plan
    return of.model_copy(update={"status": plan.status})


def _note(of: RLJob, **status: Any) -> FleetNote:
    note = fleet_note(of, [trainer(of, **status)], now=NOW)
    assert note is not None
    return note


def test_a_job_without_trackers_has_nothing_to_tell() -> None:
    assert fleet_note(_decided(_job(tracking=[])), [], now=NOW) is None
    assert fleet_note(_job(), [], now=NOW) is None, "before anything was decided"


def test_a_decision_that_changes_the_fleet_is_told_with_its_reason() -> None:
    of = _decided(_job())
    (decision,) = _note(of).decisions
    assert (decision.before, decision.after, decision.at) == (2, 4, NOW)
    assert decision.reason == "TrainerStarving"
    assert "waits 50 %" in decision.message
    assert decision.waiting == 0.5
    assert _note(of).wanted == {"local": 2}, "as the status has it"


def test_an_operator_that_begins_anew_says_the_same() -> None:
    of = _decided(_job())
    assert fleet_note(of, [], now=NOW) == fleet_note(RLJob.model_validate(of.model_dump()), [], now=NOW + 99)


@pytest.mark.parametrize(
    "of", [_decided(_job(mode="DryRun")), _decided(_job(mode="Off")), _decided(_job(), replicas=6)]
)
def test_what_changes_nothing_is_no_decision(of: RLJob) -> None:
    assert _note(of).decisions == ()


def test_failures_that_count_are_told_with_the_pod() -> None:
    of = _decided(_job())
    assert _note(of, restarts=3, attempt=4).failures == (), "what was taken away has not failed"
    error = LastError(time=datetime.fromtimestamp(NOW, UTC), reason="PodFailed", message="x" * 2048, pod="rank-0")
    (failure,) = _note(of, restarts_counted=2, last_error=error).failures
    assert (failure.trainer, failure.number, failure.pod) == ("job-solver", 2, "rank-0")
    assert failure.why == "x" * MAX_TEXT
