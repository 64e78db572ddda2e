"""The whole report as one page of HTML in the job's folder. It is built as a tree, so that all a job says of itself is
escaped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

from trimtab.cli.chronicle.figures import clock, figures, percent
from trimtab.cli.chronicle.file import FILE_NAME as CHRONICLE_NAME
from trimtab.cli.chronicle.records import Rescaled
from trimtab.cli.chronicle.story import Story
from trimtab.cli.report.charts import charts
from trimtab.cli.report.drawing import draw
from trimtab.cli.report.plot import Chart
from trimtab.cli.report.style import STYLE

FILE_NAME = "report.html"
_HEADINGS = ("at", "replicas", "waiting", "reason", "in words", "by")


def write_report(story: Story, folder: Path) -> Path:
    """Whole or not at all: the one before may be open in a browser."""
    path = folder / FILE_NAME
    partial = folder / f"{FILE_NAME}.partial"
    partial.write_text(page(story), encoding="utf-8")
    partial.replace(path)
    return path


def page(story: Story) -> str:
    job = story.began.job if story.began else "job"
    html = Element("html", {"lang": "en"})
    head = SubElement(html, "head")
    SubElement(head, "meta", {"charset": "utf-8"})
    SubElement(head, "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"})
    SubElement(head, "title").text = f"{job} · Trimtab"
    SubElement(head, "style").text = STYLE
    main = SubElement(SubElement(html, "body"), "main")
    main.append(_header(job, story))
    main.append(_figures(story))
    shown = SubElement(main, "div", {"class": "charts"})
    for chart in charts(story):
        shown.append(_figure(chart))
    main.append(_decision_table(story))
    SubElement(
        main, "footer"
    ).text = f"Made by `trimtab report` from {CHRONICLE_NAME} beside this page. Values appear under the pointer."
    return "<!doctype html>\n" + tostring(html, encoding="unicode", method="html") + "\n"


def _header(job: str, story: Story) -> Element:
    header = Element("header")
    SubElement(header, "h1").text = job
    outcome = story.ended.outcome if story.ended else "running"
    SubElement(header, "span", {"class": f"outcome {outcome}"}).text = outcome
    words = [f"ran for {clock(story.duration_s)}"]
    if story.began is not None:
        words.insert(0, f"{datetime.fromtimestamp(story.began.at, tz=UTC):%d %B %Y, %H:%M} UTC")
    if times := len(story.resumed_at):
        words.append(f"resumed {times} time{'' if times == 1 else 's'}")
    SubElement(header, "span", {"class": "when"}).text = " · ".join(words)
    if story.ended is not None and story.ended.why:
        SubElement(header, "p", {"class": "why"}).text = story.ended.why
    return header


def _figures(story: Story) -> Element:
    shown = Element("dl", {"class": "figures"})
    for figure in figures(story):
        tile = SubElement(shown, "div")
        SubElement(tile, "dt").text = figure.name
        SubElement(tile, "dd", {"class": "value"}).text = figure.value
        SubElement(tile, "dd", {"class": "note"}).text = figure.note
    return shown


def _figure(chart: Chart) -> Element:
    figure = Element("figure", {"id": chart.key, "class": "wide" if chart.wide else "half"})
    caption = SubElement(figure, "figcaption")
    SubElement(caption, "h2").text = chart.title
    SubElement(caption, "p", {"class": "note"}).text = chart.note
    if len(chart.series) > 1:
        legend = SubElement(caption, "div", {"class": "legend"})
        for series in chart.series:
            entry = SubElement(legend, "span", {"class": f"color-{series.color}" + (" quiet" if series.quiet else "")})
            SubElement(entry, "i").tail = series.name
    figure.append(draw(chart))
    return figure


def _decision_table(story: Story) -> Element:
    section = Element("section", {"class": "decisions", "id": "decisions"})
    SubElement(section, "h2").text = "Scaling decisions"
    if not story.decisions:
        off = story.began is not None and story.began.mode == "Off"
        SubElement(section, "p", {"class": "note"}).text = (
            "None: autoscaling.mode is Off." if off else "None: the fleet kept its size."
        )
        return section
    table = SubElement(section, "table")
    head = SubElement(SubElement(table, "thead"), "tr")
    for heading in _HEADINGS:
        SubElement(head, "th", {"scope": "col"}).text = heading
    body = SubElement(table, "tbody")
    for decision in story.decisions:
        _row(body, decision, story)
    return section


def _row(body: Element, decision: Rescaled, story: Story) -> None:
    row = SubElement(body, "tr")
    numbers = (
        clock(story.seconds(decision.at)),
        f"{decision.before} → {decision.after}",
        "" if decision.waiting is None else percent(decision.waiting),
        decision.reason,
    )
    for number in numbers:
        SubElement(row, "td", {"class": "number"}).text = number
    SubElement(row, "td").text = decision.message
    SubElement(row, "td").text = decision.maintainer
