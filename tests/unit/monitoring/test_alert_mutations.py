"""The cases of the alerts are worth something: whoever halves or doubles any number of any alert fails one."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from monitoring.promtool import find_promtool
from tests.support.monitoring.rule_files import ALERT_TESTS, ALERTS, alerts

pytestmark = pytest.mark.slow

# Not those in names and durations. Nothing is the half of nothing.
_NUMBER = re.compile(r"(?<![\w.:])(?!0\b(?!\.))\d+(?:\.\d+)?(?![\w.:])")
_MOST_NUMBERS = max(len(_NUMBER.findall(alert["expr"])) for alert in alerts())


@pytest.mark.parametrize("factor", [0.5, 2.0])
@pytest.mark.parametrize("place", range(_MOST_NUMBERS))
def test_another_threshold_fails_a_case(place: int, factor: float, tmp_path: Path) -> None:
    """All alerts at once, each with the number at one place changed: their cases do not depend on one another."""
    changed = {}
    for alert in alerts():
        numbers = list(_NUMBER.finditer(alert["expr"]))
        if place < len(numbers):
            found = numbers[place]
            other = f"{float(found[0]) * factor}"
            changed[alert["alert"]] = {"expr": alert["expr"][: found.start()] + other + alert["expr"][found.end() :]}
    assert _failing(changed, tmp_path) == set(changed)


def test_less_patience_fails_a_case(tmp_path: Path) -> None:
    changed = {alert["alert"]: {"for": _halved(alert["for"])} for alert in alerts()}
    assert _failing(changed, tmp_path) == set(changed)


def _halved(duration: str) -> str:
    number, unit = int(duration[:-1]), {"m": 60, "h": 3600}[duration[-1]]
    return f"{number * unit // 2}s"


def _failing(changed: dict[str, dict[str, str]], folder: Path) -> set[str]:
    """The alerts of which some case fails when these fields of theirs are others."""
    document: dict[str, Any] = copy.deepcopy(yaml.safe_load(ALERTS.read_text(encoding="utf-8")))
    for group in document["groups"]:
        for rule in group["rules"]:
            rule.update(changed.get(rule.get("alert"), {}))
    (folder / ALERTS.name).write_text(yaml.safe_dump(document), encoding="utf-8")
    shutil.copy(ALERT_TESTS, folder)
    tested = subprocess.run(
        [str(find_promtool()), "test", "rules", ALERT_TESTS.name],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "alertname:" in tested.stdout + tested.stderr, tested.stdout + tested.stderr
    return set(re.findall(r"alertname: (\w+), time:", tested.stdout + tested.stderr))
