from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from monitoring.catalogue import ROOT, shown_metrics
from monitoring.promtool import find_promtool
from monitoring.queries import Series, problems_of, series_of
from tests.support.monitoring.rule_files import ALERT_TESTS, ALERTS, alert_cases, alerts, rules

_RUNBOOKS = "https://trimtab.dev/docs/operations/"


@pytest.fixture(scope="module")
def series() -> Series:
    """What rules may name: metrics, and what other rules record."""
    recorded = {rule["record"]: _labels_recorded(rule) for rule in rules() if "record" in rule}
    return series_of(shown_metrics()) | recorded


def _labels_recorded(rule: dict[str, Any]) -> frozenset[str]:
    kept = re.match(r"\w+ by \(([^)]*)\)", rule["expr"])
    assert kept is not None, f"{rule['record']}: say by which labels"
    return frozenset(kept[1].split(", "))


def _promtool(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(find_promtool()), *arguments], cwd=folder, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_rules_are_what_prometheus_takes() -> None:
    checked = _promtool("check", "rules", ALERTS.name, folder=ALERTS.parent)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.slow
def test_alerts_fire_and_stay_silent_where_they_should() -> None:
    tested = _promtool("test", "rules", ALERT_TESTS.name, folder=ALERT_TESTS.parent)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    names = {alert["alert"] for alert in alerts()}
    cases = alert_cases()
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == names
    assert {case["alertname"] for case in cases if not case["exp_alerts"]} == names


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_expression_names_only_what_exists(alert: dict[str, Any], series: Series) -> None:
    assert problems_of(alert["expr"], series) == []


def test_recorded_series_are_of_metrics_that_exist(series: Series) -> None:
    assert [problems_of(rule["expr"], series) for rule in rules() if "record" in rule] == [[]]


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_says_how_bad_it_is_and_where_to_read_on(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    page = _page_of(alert["alert"])
    assert alert["annotations"]["runbook_url"] == _RUNBOOKS + page.stem
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {alert['alert']}\n")
    assert "\n## How to see it\n" in text
    assert "\n## What to do\n" in text


def test_the_overview_has_every_alert_and_no_other() -> None:
    overview = (ROOT / "docs/operations/README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\((\S+)\.md\) \| (\w+) \|", overview, flags=re.MULTILINE)
    assert sorted(listed) == sorted(
        (alert["alert"], _page_of(alert["alert"]).stem, alert["labels"]["severity"]) for alert in alerts()
    )


def test_links_of_the_pages_lead_somewhere() -> None:
    for page in (ROOT / "docs/operations").glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _page_of(alert: str) -> Path:
    """TrimtabNoProgress is explained in no-progress.md."""
    words = re.findall(r"[A-Z][a-z]+", alert.removeprefix("Trimtab"))
    return ROOT / "docs/operations" / ("-".join(words).lower() + ".md")
