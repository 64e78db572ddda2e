"""What the pod that tells trackers takes for new, what it keeps, and whom it tells which key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.cli.run_story import score, step, version, window
from trimtab.api.tracking import TrackerType
from trimtab.cli.chronicle.file import FILE_NAME, ChronicleFile, read_on
from trimtab.cli.chronicle.records import Fleet, Measured, Record, of_note
from trimtab.cli.tracking.cluster import notebook
from trimtab.cli.tracking.cluster.listening import Heard
from trimtab.cli.tracking.cluster.notebook import page_of
from trimtab.cli.tracking.cluster.telling import environment_of
from trimtab.cli.tracking.cursor import Cursor
from trimtab.fabric.bus.fleet_note import Decision, FleetNote, TrainerFailure


@pytest.mark.parametrize("kind", [step, version, window, lambda number: score(number, 0.5)])
def test_what_is_heard_again_is_known(kind: object) -> None:
    assert callable(kind)
    heard = Heard()
    told: list[Record] = [kind(number) for number in (1, 2, 3)]
    assert [heard.is_new(record) for record in told] == [True] * 3
    assert [heard.is_new(record) for record in told] == [False] * 3
    assert heard.is_new(kind(4))


def test_policies_and_benchmarks_are_known_apart_and_a_resumed_trainer_counts() -> None:
    heard = Heard()
    assert heard.is_new(step(7))
    assert heard.is_new(step(7, policy="judge"))
    assert heard.is_new(step(3, at=step(7).at + 5)), "from a checkpoint"
    assert heard.is_new(step(8, at=0.0)), "on a node whose clock is behind"


def test_what_was_written_down_in_the_pod_before_is_known() -> None:
    heard = Heard()
    for record in (step(2), Measured(at=1.0, policy="solver", step=3, values={}, tokens_per_second=1.0)):
        heard.recall(record)
    assert not heard.is_new(step(2))
    assert heard.measured == {"solver": 3}
    heard.recall(Fleet(at=1.0, ready={"home": 1}, wanted={"home": 2}))
    assert (heard.ready, heard.wanted) == ({"home": 1}, {"home": 2})


def _note(*times: float) -> FleetNote:
    """A decision at each, and a failure a second later."""
    return FleetNote(
        decisions=tuple(
            Decision(at=at, before=1, after=2, reason="TrainerStarving", message="it waits", maintainer="Policy")
            for at in times
        ),
        failures=tuple(
            TrainerFailure(trainer="tiny-solver", number=number, at=at + 1, pod="rank-0", why="killed")
            for number, at in enumerate(times, start=1)
        ),
    )


def test_decisions_and_failures_are_told_once_each_in_their_order() -> None:
    heard = Heard()
    told = [record for record in of_note(_note(10.0, 20.0)) if heard.is_new(record)]
    assert [record.at for record in told] == [10.0, 11.0, 20.0, 21.0]
    again = Heard()
    for record in told:
        again.recall(record)
    for one in (heard, again):
        assert [record.at for record in of_note(_note(10.0, 20.0, 30.0)) if one.is_new(record)] == [30.0, 31.0]


def _history(folder: Path, count: int) -> bytes:
    with ChronicleFile(folder) as file:
        for number in range(count):
            file.append(step(number))
    return (folder / FILE_NAME).read_bytes()


def test_a_page_has_what_the_one_furthest_behind_has_yet_to_be_told(tmp_path: Path) -> None:
    history = _history(tmp_path, 10)
    ends = [position + 1 for position, byte in enumerate(history) if byte == ord("\n")]
    cursors: dict[TrackerType, Cursor] = {
        "wandb": Cursor(offset=ends[6], newest=6, run_id="w"),
        "mlflow": Cursor(offset=ends[3], newest=3, run_id="m"),
    }
    page = page_of(history, cursors, Heard())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / FILE_NAME).write_bytes(page.history)
    for tracker, first in (("wandb", 7), ("mlflow", 4)):
        cursor = page.cursors[tracker]  # type: ignore[index]
        left, _ = read_on(tmp_path / "other", cursor.offset)
        assert left == [step(number) for number in range(first, 10)]
        assert cursor.run_id == tracker[0]


def test_one_that_is_far_too_far_behind_loses_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    history = _history(tmp_path, 100)
    monkeypatch.setattr(notebook, "MAX_HISTORY_BYTES", 2000)
    page = page_of(history, {"wandb": Cursor(), "mlflow": Cursor(offset=len(history))}, Heard())
    lines = page.history.splitlines(keepends=True)
    assert history.endswith(page.history)
    assert len(page.history) <= 2000
    assert json.loads(lines[0])["what"] == "step"
    assert page.cursors["wandb"].offset == 0
    assert page.cursors["mlflow"].offset == len(page.history)


def test_each_is_told_its_own_key_and_nothing_that_the_pod_dials_with() -> None:
    ours = {
        "WANDB_API_KEY": "w",
        "MLFLOW_TRACKING_TOKEN": "m",
        "HF_TOKEN": "h",
        "TRIMTAB_NATS__SERVERS": "n",
        "PATH": "/bin",
    }
    assert environment_of("wandb", ours) == {"WANDB_API_KEY": "w", "PATH": "/bin"}
    assert environment_of("tensorboard", ours) == {"PATH": "/bin"}
