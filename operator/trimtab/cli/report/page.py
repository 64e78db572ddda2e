"""The whole report as one page of HTML. It is built as a tree, so whatever a job may say of itself is escaped."""

from __future__ import annotations

from datetime import UTC, datetime
from xml.etree.ElementTree import Element, SubElement, tostring

from trimtab.cli.chronicle.figures import clock, figures
from trimtab.cli.chronicle.file import FILE_NAME
from trimtab.cli.chronicle.story import Story
from trimtab.cli.report.charts import charts
from trimtab.cli.report.decisions import decision_table
from trimtab.cli.report.drawing import draw
from trimtab.cli.report.plot import Chart
from trimtab.cli.report.style import STYLE


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
    main.append(decision_table(story))
    SubElement(
        main, "footer"
    ).text = f"Made by `trimtab report` from {FILE_NAME} beside this page. Values appear under the pointer."
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
