"""The report: one page that needs nothing else, has the data of the run in every chart, and lets nothing through."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.support.cli import run_story
from tests.support.cli.run_story import START, STEPS
from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.chronicle.records import Measured
from trimtab.cli.chronicle.story import Story, told
from trimtab.cli.main import main
from trimtab.cli.report.charts import charts
from trimtab.cli.report.page import page
from trimtab.cli.report.plot import Scale, clock_ticks, round_ticks, thinned

_VOID = {"meta"}


class Page(HTMLParser):
    """Elements with their attributes and texts, and whether every element was closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.series: dict[str, dict[str, int]] = {}
        self._open: list[str] = []
        self._figure = ""
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.elements.append((tag, attributes))
        if tag == "figure":
            self._figure = attributes["id"]
        if "data-points" in attributes:
            self.series.setdefault(self._figure, {})[attributes["data-name"]] = int(attributes["data-points"])
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.elements)


def test_parts_of_the_reward_have_a_chart_where_there_are_any() -> None:
    steps = [
        msgspec.structs.replace(
            run_story.step(number), reward_parts={"answer": 0.5, **({"format": 1.0} if number else {})}
        )
        for number in range(4)
    ]
    parsed = Page(page(told([run_story.began(), *steps])))
    assert parsed.series["reward-parts"] == {"answer": 4, "format": 3}
    assert "Parts of the reward" in " ".join(parsed.texts)


def test_the_learning_rate_has_a_chart_where_trainers_tell_it() -> None:
    told_rates = [
        Measured(at=START + n, policy="solver", step=n, values={"learning_rate": 1e-3 / n}, tokens_per_second=1.0)
        for n in (1, 2, 4)
    ]
    parsed = Page(page(told([*run_story.records(), *told_rates])))
    assert parsed.series["learning-rate"] == {"learning rate": 3}
    assert "learning-rate" not in Page(page(run_story.story())).series


def test_every_chart_has_its_data() -> None:
    parsed = Page(page(run_story.story()))
    assert parsed.series == {
        "reward": {"reward": STEPS},
        "reward-parts": {"right": STEPS},
        "evaluation": {"held-out": 5},
        "length": {"tokens": STEPS},
        "truncated": {"cut short": STEPS},
        "waiting": {"steps": STEPS, "balance reports": 10},
        "fleet": {"wanted": 6, "ready": 6},
        "staleness": {"staleness": STEPS},
        "weights": {"delta": STEPS - 1},
        "throughput": {"samples/s": STEPS - 5},
    }
    text = " ".join(parsed.texts)
    for part in (
        "grow > 10%",
        "shrink < 5%",
        "1 → 2",
        "2 → 3",
        "target 0.92",
        "bound 2",
        "full copy 1.3 MB",
        run_story.WHY,
    ):
        assert part in text, part
    assert parsed.count("tr") == 3


def test_it_needs_no_network() -> None:
    text = page(run_story.story())
    assert not re.search(r"https?:|//[a-z]|url\(|@import|<script|<link|<img|src=", text)
    assert "prefers-color-scheme: dark" in text


def test_whatever_a_job_says_is_escaped() -> None:
    nasty = "</style><script>alert(1)</script>&\"'"
    story = told(
        [
            *run_story.records(),
            run_story.rescaled(3, 2, at=40, message=nasty),
            run_story.step(1, policy=nasty),
            run_story.ended("failed", at=99, why=nasty),
        ]
    )
    parsed = Page(page(story))
    assert parsed.count("script") == 0
    assert parsed.count("style") == 1
    assert nasty in parsed.texts


def test_a_run_that_has_just_begun_has_a_page() -> None:
    assert charts(told([run_story.began()])) == []
    assert "None: the fleet kept its size." in page(told([run_story.began()]))
    assert "autoscaling.mode is Off" in page(told([run_story.began(mode="Off")]))
    one_step = told([run_story.began(), run_story.step(0)])
    assert [chart.key for chart in charts(one_step)] == ["reward", "reward-parts", "length", "waiting", "staleness"]
    assert Page(page(one_step)).series["reward"] == {"reward": 1}
    assert Page(page(Story())).count("figure") == 0


def test_a_resumed_run_is_marked() -> None:
    later = run_story.START + 5_000
    story = told([*run_story.records(), run_story.began(at=later), run_story.step(60, at=later + 9)])
    parsed = Page(page(story))
    assert any("resumed 1 time" in text for text in parsed.texts)
    assert "resumed" in parsed.texts


def test_long_runs_are_thinned_and_keep_their_ends() -> None:
    points = [(float(n), float(n)) for n in range(10_000)]
    few = thinned(points, most=100)
    assert len(few) == 100
    assert (few[0], few[-1]) == (points[0], points[-1])
    assert few == sorted(few)
    assert all(abs(x - y) < 1e-9 for x, y in few)


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0, 1, [0, 0.5, 1]), (0, 3.2, [0, 1, 2, 3]), (0, 1_400_000, [0, 500_000, 1_000_000]), (5, 5, [5])],
)
def test_ticks_are_round(low: float, high: float, ticks: list[float]) -> None:
    assert round_ticks(low, high) == pytest.approx(ticks)


def test_clocks_have_ticks_of_their_own() -> None:
    assert clock_ticks(0, 110) == [0, 15, 30, 45, 60, 75, 90, 105]
    assert clock_ticks(0, 30 * 86_400)[1] == 4 * 86_400


def test_a_scale_keeps_to_its_place() -> None:
    scale = Scale(low=0, high=10, start=100, end=0)
    assert [scale(value) for value in (-5, 0, 5, 10, 20)] == [100, 100, 50, 0, 0]
    assert Scale(low=1, high=1, start=0, end=10)(1) == 0


def test_the_command_writes_the_page_again(tmp_path: Path) -> None:
    with ChronicleFile(tmp_path) as file:
        for record in run_story.records():
            file.append(record)
    done = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.strip() == str(tmp_path / "report.html")
    assert Page((tmp_path / "report.html").read_text()).series["reward"] == {"reward": STEPS}


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["report", str(tmp_path)])
    assert refused.exit_code == 1
    assert "has no history.jsonl" in refused.output
