"""What the page is told of a run: curves, events and a line for the list."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.support.cli.run_story import STEPS, WHY, began, died, ended, records, rescaled, score, step, version
from trimtab.cli.chronicle.file import FILE_NAME, ChronicleFile
from trimtab.cli.chronicle.records import Began, Record
from trimtab.cli.ui.local import LocalRun, state_folders
from trimtab.cli.ui.shown import Summary, Told
from trimtab.cli.ui.telling import HistoryTelling


def _telling(*told: Record) -> HistoryTelling:
    telling = HistoryTelling()
    for record in told:
        telling.add(record)
    return telling


def _summary(telling: HistoryTelling, *, state: str = "running") -> Summary:
    return telling.summary(run_id="id", name="folder", where="", state=state)


def _write(folder: Path, *told: Record) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with ChronicleFile(folder) as file:
        for record in told:
            file.append(record)
    return folder


def test_steps_are_counted_from_one_and_a_version_lies_at_the_steps_before_it() -> None:
    told = _telling(began(), step(0), version(1), score(1, 0.5)).told[1:]
    assert [one.step for one in told] == [1, 1, 1]
    assert told[0].values["solver/reward"] == 0.0
    assert told[2].values["solver/evaluation/held-out/score"] == 0.5


def test_rates_are_over_the_latest_steps() -> None:
    told = [one.values for one in _telling(*records()).told if "solver/reward" in one.values]
    assert not any("solver/rate/samples" in one for one in told[:5])
    assert [one["solver/rate/samples"] for one in told[5:]] == pytest.approx([256.0] * (STEPS - 5))
    assert told[-1]["solver/rate/tokens"] == pytest.approx(1024.0)


def test_events_have_their_reasons_and_no_folders() -> None:
    first = msgspec.structs.replace(began(), models={"solver": "/home/somebody/models/solver"})
    told = _telling(first, rescaled(1, 2, at=16), died(at=20), ended("failed", at=30, why="no room")).told
    said = msgspec.json.encode(told).decode()
    assert WHY in said
    assert "SIGKILL" in said
    assert "no room" in said
    assert "somebody" not in said
    assert [one.event is not None for one in told] == [True] * 4


def test_a_line_of_the_list_has_the_newest_window_and_scores() -> None:
    summary = _summary(_telling(*records()))
    assert (summary.job, summary.step, summary.max_steps, summary.ready) == ("quickstart", STEPS, 300, 3)
    assert summary.reward == pytest.approx(sum(range(STEPS - 5, STEPS)) / 5 / STEPS)
    assert summary.scores == {"held-out": pytest.approx(0.1 + 40 / 60)}
    assert summary.curve[0] < summary.curve[-1]
    assert len(summary.curve) <= 48


def test_a_run_without_a_step_has_a_line_too() -> None:
    assert _summary(_telling(began())).step == 0
    assert _summary(_telling()).job == "folder"


def test_state_folders_are_found_below_a_folder_and_by_their_own_name(tmp_path: Path) -> None:
    one = _write(tmp_path / "jobs" / ".trimtab" / "one", began())
    two = _write(tmp_path / "elsewhere", began())
    for passed_by in (".venv", "node_modules", ".git"):
        _write(tmp_path / passed_by / "three", began())
    assert sorted(state_folders([tmp_path])) == [two, one]
    assert list(state_folders([one])) == [one]


async def test_a_history_is_read_on_and_one_that_begins_anew_is_told_anew(tmp_path: Path) -> None:
    folder = _write(tmp_path / "beside" / ".trimtab" / "job", began(), step(0))
    run = LocalRun(folder, beside=tmp_path)
    assert await run.look()
    assert (run.summary.where, run.summary.state, len(run.telling.told)) == ("beside", "killed", 2)
    assert not await run.look()
    generation = run.generation
    _write(folder, step(1), ended("succeeded", at=80))
    assert await run.look()
    assert (run.summary.state, len(run.telling.told), run.generation) == ("succeeded", 4, generation)
    (folder / FILE_NAME).unlink()
    _write(folder, began(at=2_000_000.0))
    assert await run.look()
    assert len(run.telling.told) == 1
    assert run.generation != generation


def test_a_run_is_named_so_that_an_address_can_hold_it(tmp_path: Path) -> None:
    one, other = (LocalRun(_write(tmp_path / name, began()), beside=tmp_path) for name in ("a b/c:é#?", "a b/c:\udcff"))
    assert re.fullmatch(r"[A-Za-z0-9._-]+", one.id)
    assert one.id != other.id
    assert msgspec.json.encode(other.summary)


async def test_a_history_that_cannot_be_read_is_said_to_be_so(tmp_path: Path) -> None:
    folder = _write(tmp_path / "job", began())
    with (folder / FILE_NAME).open("a") as file:
        file.write('{"what": "gone"}\n')
    run = LocalRun(folder, beside=tmp_path)
    assert await run.look()
    assert "after byte 0" in run.summary.trouble


def test_the_encoded_words_are_those_that_the_page_reads() -> None:
    told = Told(t=1.0, at=2.0, step=3, values={"solver/reward": 0.5})
    assert msgspec.json.decode(msgspec.json.encode(told)) == {
        "t": 1.0,
        "at": 2.0,
        "step": 3,
        "values": {"solver/reward": 0.5},
    }


async def test_a_history_that_is_replaced_while_it_is_read_is_told_once(tmp_path: Path) -> None:
    folder = _write(tmp_path / "job", *records())

    class Replaced(LocalRun):
        def _read(self):  # type: ignore[no-untyped-def]
            news = super()._read()
            if len(news.records) > 1:
                (folder / FILE_NAME).unlink()
                _write(folder, began(at=3_000_000.0))
            return news

    run = Replaced(folder, beside=tmp_path)
    await run.look()
    assert [type(one.event) for one in run.telling.told] == [Began]
