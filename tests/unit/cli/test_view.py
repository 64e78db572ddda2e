"""The terminal view shows what a person needs, from the first second to the last, on narrow and wide terminals."""

from __future__ import annotations

import pytest
from rich.console import Console

from tests.support.cli import run_story
from tests.support.cli.run_story import START
from trimtab.cli.chronicle.records import Measured
from trimtab.cli.chronicle.story import Story, told
from trimtab.cli.display import as_picture
from trimtab.cli.plain_lines import PlainLines
from trimtab.cli.view import Moment, block_chart, render
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State

WORKER = MemberHeartbeat(
    member_id="quickstart-local-rollout-0", job="quickstart", role=Role.ROLLOUT, pool="local", state=State.READY,
    in_flight=12, samples_per_second=480.0, tokens_per_second=1_920.0, started_at=1.0, sent_at=2.0,
)  # fmt: skip


CALM = Moment(now=START)


def shown(story: Story, moment: Moment, *, width: int = 120) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(render("quickstart", story, moment))
    return capture.get()


def test_before_anything_has_happened() -> None:
    text = shown(told([run_story.began()]), Moment(now=START + 42, activity="Starting"))
    assert "quickstart · 0:42 · Starting" in text
    assert "pods  starting" in text


@pytest.mark.parametrize("width", [80, 120])
def test_a_running_job(width: int) -> None:
    text = shown(run_story.story(), Moment(now=START + 65, activity="Training", members=[WORKER]), width=width)
    for part in (
        "1:05 · Training", "step 50/300", "0.980", "mean 0.940, target 0.92", "0.767 at version 40",
        "8% hold (5%…10% holds)", "1.4 of at most 2 versions", "v49: 420.0 kB of 1.3 MB, 31%",
        "256 samples/s · 1,024 tokens/s · 12,800 trained", "4.2 tokens · 10% cut short", "right 0.98",
        "local 3 of 3 ready", "1,920 tokens/s", "█",
        "0:16  1 → 2  TrainerStarving: the trainer of solver", "0:28  2 → 3", "12 in flight",
    ):  # fmt: skip
        assert part in text, part
    lines = text.splitlines()
    assert {len(line) for line in lines} == {width}
    assert len(lines) <= 20, "it fits on a terminal of 24 lines"


def learning(step: int, rate: float) -> Measured:
    values = {"learning_rate": rate, "grad_norm": 0.25}
    return Measured(at=START + step, policy="solver", step=step, values=values, tokens_per_second=5.0)


def test_the_learning_rate_is_shown_where_the_trainer_tells_it() -> None:
    story = told([*run_story.records(), learning(10, 1e-3), learning(50, 5e-4)])
    text = shown(story, CALM)
    assert "learning" in text
    assert "5.00e-04 · gradient norm 0.25" in text
    assert len(text.splitlines()) <= 21
    assert "learning" not in shown(run_story.story(), CALM)


def test_troubles_are_shown() -> None:
    container = "quickstart-local-rollout-0/engine-solver"
    moment = Moment(
        now=START,
        members=[WORKER],
        restarts={container: 2},
        failing={container: "Traceback [/oops]\nout of luck"},
        quarantined=3,
        quarantine_command="trimtab quarantine quickstart --state-folder x",
    )
    text = shown(run_story.story(), moment)
    for part in (
        "480/s, 12 in flight, 2 restarts", "rollout-0/engine-solver died", "Traceback [/oops]", "out of luck",
        "3 tasks were given up", "trimtab quarantine quickstart --state-folder x",
    ):  # fmt: skip
        assert part in text, part


def test_a_trainer_that_died_and_came_back_is_mentioned_for_as_long_as_the_job_runs() -> None:
    story = told([*run_story.records(), run_story.died(at=30)])
    text = " ".join(shown(story, Moment(now=START + 3600)).replace("│", " ").split())
    assert "0:30 quickstart-solver-trainer-0 died and its trainer goes back to the checkpoint" in text
    assert "trainer was killed by SIGKILL" in text


def test_the_death_of_a_trainer_is_told_once() -> None:
    story = told([run_story.began()])
    lines = PlainLines(story)
    story.add(run_story.died(at=30))
    waiting = Moment(now=START, activity=f"WaitingForTrainer quickstart-solver: Restarting {run_story.KILLED}")
    first, second = lines.new(waiting)
    assert first.startswith("quickstart-solver-trainer-0 died")
    assert run_story.KILLED in first
    assert second == "WaitingForTrainer"
    assert list(lines.new(waiting)) == []


def test_several_policies_have_rows_of_their_own() -> None:
    story = told([*run_story.records(), run_story.step(3, policy="critic")])
    text = shown(story, Moment(now=START + 65))
    assert text.index("solver") < text.index("step 50") < text.index("critic") < text.index("step 4/")


def test_a_picture_needs_no_network() -> None:
    svg = as_picture(render("quickstart", run_story.story(), Moment(now=START + 65)), title="trimtab run")
    assert svg.startswith("<svg")
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
    assert "TrainerStarving" in svg


def test_lines_tell_every_fifth_step_every_score_and_every_decision_once() -> None:
    story = told([run_story.began()])
    lines = PlainLines(story)
    for record in run_story.records():
        story.add(record)
    text = "\n".join(lines.new(CALM))
    assert "solver  step 50  reward 0.980  waiting 8%  staleness 1.4  version 49" in text
    assert "solver  held-out 0.767  version 40  100 episodes" in text
    assert "fleet 1 → 2  TrainerStarving" in text
    assert list(lines.new(CALM)) == []
    story.add(run_story.step(50))
    assert list(lines.new(CALM)) == []
    story.add(run_story.score(50, None, failed=3))
    assert list(lines.new(CALM)) == ["solver  held-out -  version 50  100 episodes  3 failed"]


def test_lines_tell_what_a_job_does_and_every_trouble_once() -> None:
    lines = PlainLines(told([run_story.began()]))
    starting = Moment(now=START, activity="Starting 0 of 1 pods")
    assert list(lines.new(starting)) == ["Starting 0 of 1 pods"]
    assert list(lines.new(Moment(now=START, activity="Starting 1 of 1 pods"))) == []
    dying = Moment(now=START, activity="Starting", failing={"rollout-0/worker": "No module named 'trimtab'\n"})
    assert list(lines.new(dying)) == ["rollout-0/worker died: No module named 'trimtab'"]
    assert list(lines.new(dying)) == []
    assert list(lines.new(starting)) == []
    assert len(list(lines.new(dying))) == 1, "it died again, long after"
    for quarantined, told_now in ((1, True), (1, False), (2, True), (3, False), (9, True)):
        moment = Moment(now=START, activity="Training", quarantined=quarantined)
        assert any("given up" in line for line in lines.new(moment)) == told_now


def test_a_resumed_run_tells_only_what_is_new() -> None:
    assert list(PlainLines(run_story.story()).new(CALM)) == []


def test_a_block_chart_shows_the_rise_in_the_room_it_has() -> None:
    values = [step / 1000 for step in range(1000)]
    (line,) = block_chart(values, low=0.0, high=1.0, width=20)
    assert len(line) == 20
    assert (line[0], line[-1]) == (" ", "█")
    assert list(line) == sorted(line)
    assert block_chart([], low=0.0, high=1.0, width=20) == [""]
    high = block_chart(values, low=0.0, high=1.0, width=20, height=3)
    top, middle, bottom = high
    assert (top[0], middle[0]) == (" ", " ")
    assert (middle[-1], bottom[-1]) == ("█", "█")
    assert top[-1] == "▇"


def test_storage_that_is_full_is_shown_and_told_once_and_again_when_it_is_not() -> None:
    story = told([run_story.began()])
    full = Moment(now=START, activity="WaitingForRoom", shortage="the disk has 3 MiB left")
    assert "the disk has 3 MiB left" in shown(story, full)
    lines = PlainLines(story)
    assert "the disk has 3 MiB left" in list(lines.new(full))
    assert list(lines.new(full)) == []
    assert "there is room again" in list(lines.new(CALM))
