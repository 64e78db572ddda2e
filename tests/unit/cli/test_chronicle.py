"""The history of a run: kept line by line, read again after anything, and counted once."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.cli import run_story
from tests.support.cli.run_story import DELTA, START
from tests.support.dataflow.jobs import job
from tests.support.small_disk import small_disk
from trimtab.api.conditions import LastError
from trimtab.api.job import PoolStatus
from trimtab.api.trainer import TrainerStatus
from trimtab.cli.chronicle.chronicler import Chronicler
from trimtab.cli.chronicle.figures import clock, figures, percent
from trimtab.cli.chronicle.file import FILE_NAME, ChronicleFile, UnreadableChronicle, read
from trimtab.cli.chronicle.records import Measured, Version
from trimtab.cli.chronicle.story import Story, rates, told
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.operator.plan.children import trainer_of


def test_what_is_written_is_read(tmp_path: Path) -> None:
    written = list(run_story.records())
    with ChronicleFile(tmp_path) as file:
        for record in written:
            file.append(record)
    assert list(read(tmp_path)) == written


def test_a_folder_without_history_has_an_empty_one(tmp_path: Path) -> None:
    assert list(read(tmp_path)) == []


def test_half_a_line_is_left_out_and_written_over(tmp_path: Path) -> None:
    with ChronicleFile(tmp_path) as file:
        file.append(run_story.began())
    whole = (tmp_path / FILE_NAME).read_bytes()
    (tmp_path / FILE_NAME).write_bytes(whole + whole[:20])
    assert list(read(tmp_path)) == [run_story.began()]
    with ChronicleFile(tmp_path) as file:
        file.append(run_story.step(0))
    assert list(read(tmp_path)) == [run_story.began(), run_story.step(0)]


def test_a_foreign_line_is_named(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text('{"what": "lunch", "at": 1}\n')
    with pytest.raises(UnreadableChronicle, match=r"history\.jsonl, line 1"):
        list(read(tmp_path))


def test_what_is_heard_twice_counts_once() -> None:
    once, twice = run_story.story(), told([*run_story.records(), *run_story.records()])
    for view in ("steps", "windows", "versions", "scores"):
        assert getattr(once.policies["solver"], view) == getattr(twice.policies["solver"], view)


def test_the_clock_stops_between_runs() -> None:
    resumed = START + 10_000
    story = told(
        [
            *run_story.records(),
            run_story.ended("stopped", at=70),
            run_story.began(at=resumed),
            run_story.step(50, at=resumed + 5),
        ]
    )
    assert story.seconds(START + 30) == 30
    assert story.seconds(START + 5_000) == 70
    assert story.resumed_at == [70]
    assert story.seconds(resumed + 5) == 75
    assert story.duration_s == 75
    assert story.ended is None


def test_the_first_version_of_a_resumed_trainer_is_no_full_copy() -> None:
    note = Version(at=START + 90, policy="solver", epoch=2, version=50, size=321)
    solver = told([*run_story.records(), note]).policies["solver"]
    assert solver.full_size == run_story.FULL
    assert note not in solver.deltas
    assert solver.versions[-1] == note


def test_rates_are_over_a_few_steps() -> None:
    story = run_story.story()
    found = rates(story.policies["solver"].steps, story)
    assert {(round(rate.samples), round(rate.tokens)) for rate in found} == {(256, 1024)}
    assert rates([], story) == []
    assert rates(story.policies["solver"].steps[:1], story) == []


def test_figures_of_a_run() -> None:
    found = {figure.name: figure for figure in figures(run_story.story())}
    assert found["reward"].value == "0.940"
    assert found["held-out"].value == "0.767"
    assert found["waiting"].value == "29%"
    assert found["weight bytes"].value == "31%"
    assert found["throughput"].value == "256"
    assert found["fleet"].value == "1 → 3"
    assert "2 scaling decisions" in found["fleet"].note
    assert figures(Story()) == []


def test_figures_of_several_policies_say_whose_they_are() -> None:
    story = told([*run_story.records(), run_story.step(0, policy="critic")])
    assert {"solver: reward", "critic: reward"} <= {figure.name for figure in figures(story)}


def test_figures_mention_trainers_that_died_and_came_back() -> None:
    found = {figure.name: figure for figure in figures(told([*run_story.records(), run_story.died(at=30)]))}
    assert found["restarts"].value == "1"
    assert "the last at 0:30: quickstart-solver-trainer-0: trainer was killed by SIGKILL" in found["restarts"].note


def test_a_failure_that_counted_is_written_down_once(tmp_path: Path) -> None:
    error = LastError(time=datetime.fromtimestamp(START, UTC), reason="PodFailed", message="x", pod="rank-0")
    trainer = trainer_of(job(), job().spec.policies[0]).model_copy(
        update={"status": TrainerStatus(restarts=1, attempt=4)}
    )
    with ChronicleFile(tmp_path) as file:
        chronicler = Chronicler(file, Story(), clock=lambda: START)
        chronicler.observe_trainers([trainer])
        assert chronicler.story.deaths == [], "a job that is resumed begins a new attempt, and nobody died"
        failed = trainer.model_copy(update={"status": TrainerStatus(restarts_counted=1, last_error=error)})
        for _ in range(2):
            chronicler.observe_trainers([failed])
    assert [(death.pod, death.why) for death in told(read(tmp_path)).deaths] == [("rank-0", "x")]


def test_what_a_trainer_says_of_a_step_is_written_down_once(tmp_path: Path) -> None:
    def beat(made: int, entropy: float) -> MemberHeartbeat:
        return MemberHeartbeat(
            member_id="trainer", job="job", role=Role.TRAINER, state=State.READY, versions={"solver": made},
            measures={"entropy": entropy} if made else {}, tokens_per_second=5.0, started_at=0.0, sent_at=0.0,
        )  # fmt: skip

    with ChronicleFile(tmp_path) as file:
        chronicler = Chronicler(file, Story(), clock=lambda: START)
        for made, entropy in ((0, 0.0), (1, 0.5), (1, 0.5), (3, 0.25)):
            chronicler.observe_measures([beat(made, entropy), _member(State.READY)])
    assert list(read(tmp_path)) == [
        Measured(at=START, policy="solver", step=made, values={"entropy": entropy}, tokens_per_second=5.0)
        for made, entropy in ((1, 0.5), (3, 0.25))
    ]


def test_times_and_shares_read_well() -> None:
    assert (clock(5), clock(65), clock(7_805)) == ("0:05", "1:05", "2:10:05")
    assert [percent(share) for share in (0.0, 0.0001, 0.004, 0.31)] == ["0%", "0%", "0.4%", "31%"]


def _member(state: State) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id=f"job-local-rollout-{state}", job="job", role=Role.ROLLOUT, pool="local", state=state,
        started_at=1.0, sent_at=2.0,
    )  # fmt: skip


def test_a_chronicler_writes_what_changes_and_keeps_the_story(tmp_path: Path) -> None:
    pools = [PoolStatus(name="local", replicas=2, ready_replicas=2, desired_replicas=2)]
    pointer = WeightPointer(
        job="job", policy="solver", version=7, base_version=6, epoch=1, manifest_key="m",
        manifest_digest="sha256:" + "0" * 64, size_bytes=DELTA, published_at=5.0,
    )  # fmt: skip
    with ChronicleFile(tmp_path) as file:
        chronicler = Chronicler(file, Story(), clock=lambda: 3.0)
        chronicler.observe_fleet(pools, [_member(State.STARTING)])
        chronicler.observe_fleet(pools, [_member(State.STARTING)])
        chronicler.observe_fleet(pools, [_member(State.READY)])
        chronicler.on_message(pointer)
        chronicler.end("succeeded")
    assert [fleet.ready for fleet in chronicler.story.fleet] == [{"local": 0}, {"local": 1}]
    again = told(read(tmp_path))
    assert again.policies["solver"].deltas == chronicler.story.policies["solver"].deltas
    assert again.policies["solver"].deltas[0].size == DELTA
    assert again.ended is not None


def test_what_a_full_disk_does_not_take_goes_with_the_next_one(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mebibytes=1) as disk, ChronicleFile(disk.folder) as file:
        file.append(run_story.began())
        disk.fill()
        for step in range(200):
            file.append(run_story.step(step))
        assert len(list(read(disk.folder))) < 200
        disk.free()
        file.append(run_story.step(200))
        assert list(read(disk.folder)) == [run_story.began(), *map(run_story.step, range(201))]
