"""The scaling decisions of a run as a table: when, from what to what, and why."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from trimtab.cli.chronicle.figures import clock, percent
from trimtab.cli.chronicle.records import Rescaled
from trimtab.cli.chronicle.story import Story

_HEADINGS = ("at", "replicas", "waiting", "reason", "in words", "by")


def decision_table(story: Story) -> Element:
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
