"""What trackers are told of a run, and that one which is away is told later."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.api.manifests import changed
from tests.support.cli.run_story import records, rescaled, score, step
from tests.support.dataflow.jobs import job
from tests.support.operator.scene import tiny_job
from trimtab.api.job import RLJob
from trimtab.api.validation import problems as invalid
from trimtab.cli.chronicle.file import FILE_NAME, ChronicleFile
from trimtab.cli.chronicle.records import Measured, Record
from trimtab.cli.tracking.following import Follower
from trimtab.cli.tracking.points import Point, Points
from trimtab.cli.tracking.tracker import Run, TrackerAway
from trimtab.cli.tracking.trackers import environment_of, problems
from trimtab.fabric.backoff import FullJitter
from trimtab.operator.reconcile.refusals import refusal_of


def _points(*told: Record, newest: int = 0) -> list[Point]:
    points = Points(newest=newest)
    return [point for record in told for point in points.of(record)]


def test_a_step_is_told_with_its_parts_under_its_policy() -> None:
    (point,) = _points(step(7))
    assert point.step == 7
    assert point.values["solver/reward"] == 7 / 50
    assert {"solver/staleness", "solver/waiting", "solver/samples"} <= point.values.keys()
    assert (point.values["solver/length"], point.values["solver/tokens"]) == (4.25, 1024.0)


def test_measures_of_a_step_are_told_at_the_step_that_they_are_of() -> None:
    values = {"entropy": 1.5, "grad_norm": 0.25}
    (point,) = _points(Measured(at=1.0, policy="solver", step=8, values=values, tokens_per_second=100.0))
    assert point.step == 7
    assert point.values == {
        "solver/trainer/entropy": 1.5,
        "solver/trainer/grad_norm": 0.25,
        "solver/trainer/tokens_per_second": 100.0,
    }


def test_a_decision_is_told_at_the_newest_step_with_its_reason() -> None:
    *_, point = _points(step(3), step(9), rescaled(1, 2, at=5.0))
    assert (point.step, point.values) == (9, {"fleet/decided": 2.0})
    assert "TrainerStarving" in point.note


def test_a_round_in_which_every_episode_failed_has_no_score() -> None:
    (point,) = _points(score(4, None, failed=100))
    assert point.values == {"solver/evaluation/held-out/episodes": 100.0, "solver/evaluation/held-out/failed": 100.0}


@dataclass
class Ledger:
    """A tracker that is away when it is told to be, and keeps what it takes."""

    taken: list[Point] = field(default_factory=list)
    opened_as: list[str] = field(default_factory=list)
    refusals: int = 0

    def open(self, run: Run) -> Ledger:
        self.opened_as.append(run.id)
        return self

    @property
    def run_id(self) -> str:
        return "the-run"

    def write(self, points: Sequence[Point]) -> None:
        if self.refusals:
            self.refusals -= 1
            raise TrackerAway("no answer")
        self.taken += points

    def close(self) -> None:
        pass


def _write(folder: Path, told: Iterable[Record]) -> None:
    with ChronicleFile(folder) as file:
        for record in told:
            file.append(record)


@pytest.fixture
def following(tmp_path: Path) -> Callable[[Ledger], Follower]:
    run = Run(job="job", name="job", project="trimtab", folder=tmp_path / "out")
    return lambda ledger: Follower(
        run,
        ledger.open,
        state_folder=tmp_path,
        cursor_file=tmp_path / "cursor.json",
        backoff=FullJitter(base_s=0.001, cap_s=0.001),
    )


def test_one_that_was_away_is_told_everything_once(tmp_path: Path, following: Callable[[Ledger], Follower]) -> None:
    ledger = Ledger(refusals=3)
    _write(tmp_path, records())
    follower = following(ledger)
    for _ in range(3):
        with pytest.raises(TrackerAway):
            follower.tell()
        follower.close()
    while follower.tell():
        pass
    assert ledger.taken == _points(*records())
    assert ledger.opened_as == ["", "the-run", "the-run", "the-run"], "a run that was begun is gone on with"


def test_another_process_goes_on_where_the_last_one_stopped(
    tmp_path: Path, following: Callable[[Ledger], Follower]
) -> None:
    first, second = list(records())[:60], list(records())[60:]
    ledger = Ledger()
    _write(tmp_path, first)
    assert following(ledger).tell()
    _write(tmp_path, second)
    with (tmp_path / FILE_NAME).open("ab") as file:
        file.write(b'{"what":"step","half')
    again = following(ledger)
    assert again.tell()
    assert not again.tell(), "half a line is no record yet"
    assert ledger.taken == _points(*first, *second)


def test_following_ends_with_all_that_there_is(tmp_path: Path, following: Callable[[Ledger], Follower]) -> None:
    ledger = Ledger(refusals=2)
    stopping = threading.Event()
    _write(tmp_path, records())
    thread = threading.Thread(target=following(ledger).follow, args=(stopping,))
    thread.start()
    while not ledger.taken:
        assert thread.is_alive()
    _write(tmp_path, [step(77)])
    stopping.set()
    thread.join(60)
    assert ledger.taken == _points(*records(), step(77))


def _job(*trackers: dict[str, Any]) -> Any:
    return job(tracking=list(trackers))


def test_a_library_that_is_missing_is_named_with_what_to_install() -> None:
    missing = problems(_job({"type": "wandb"}).spec.tracking, {})
    assert missing == ["spec.tracking[wandb]: the library is not installed here: pip install wandb"]


def test_a_key_comes_from_the_environment_and_is_named_when_it_is_missing() -> None:
    desired = _job({"type": "wandb", "keySecret": {"name": "wb", "key": "api-key"}})
    (tracker,) = desired.spec.tracking
    assert any("set WANDB_API_KEY, or SECRET_WB_API_KEY" in problem for problem in problems([tracker], {}))
    for environment in ({"SECRET_WB_API_KEY": "k"}, {"WANDB_API_KEY": "k", "SECRET_WB_API_KEY": "other"}):
        assert not any("keySecret" in problem for problem in problems([tracker], environment))
        assert environment_of(tracker, environment)["WANDB_API_KEY"] == "k"


_VOLUME = {"spec": {"volumes": [{"name": "curves", "emptyDir": {}}]}}


@pytest.mark.parametrize(
    ("tracker", "template", "says"),
    [
        ({"type": "tensorboard"}, _VOLUME, "spec.tracking[0].folder: missing"),
        ({"type": "tensorboard", "folder": "runs"}, _VOLUME, "spec.tracking[0].folder (runs): relative"),
        ({"type": "tensorboard", "folder": "/curves"}, None, "spec.trackingTemplate: missing"),
        ({"type": "mlflow"}, None, "spec.tracking[0].url: missing"),
        ({"type": "trackio"}, None, "TRACKIO_DIR"),
    ],
)
def test_a_cluster_refuses_what_nobody_could_look_at(
    tracker: dict[str, Any], template: dict[str, Any] | None, says: str
) -> None:
    refusal = refusal_of(RLJob.model_validate(tiny_job(tracking=[tracker], trackingTemplate=template)).spec)
    assert refusal is not None
    assert says in refusal


def test_a_cluster_takes_trackers_that_people_can_look_at() -> None:
    trackers = [
        {"type": "wandb", "keySecret": {"name": "wb", "key": "api-key"}},
        {"type": "mlflow", "url": "https://mlflow.example.org"},
        {"type": "tensorboard", "folder": "/curves"},
        {"type": "trackio"},
    ]
    desired = RLJob.model_validate(tiny_job(tracking=trackers, trackingTemplate=_VOLUME))
    assert refusal_of(desired.spec) is None
    assert refusal_of(RLJob.model_validate(tiny_job(tracking=trackers[:2])).spec) is None


@pytest.mark.parametrize(
    ("tracker", "says"),
    [
        ({"type": "wandb", "folder": "x"}, "folder applies only to tensorboard and mlflow"),
        ({"type": "tensorboard", "url": "https://x"}, "url applies only to mlflow and wandb"),
        ({"type": "tensorboard", "keySecret": {"name": "a", "key": "b"}}, "keySecret applies only"),
        ({"type": "neptune"}, "must be one of tensorboard, mlflow, wandb, trackio"),
    ],
)
def test_fields_that_a_tracker_does_not_have_are_refused(tracker: dict[str, Any], says: str) -> None:
    manifest = changed(job().model_dump(mode="json", exclude_none=True), {"spec.tracking": [tracker]})
    (problem,) = invalid(manifest)
    assert problem.field.startswith("spec.tracking[0]")
    assert says in problem.message
