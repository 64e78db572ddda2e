"""The alerts, their tests and the dashboards, as they are in the repository."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from monitoring.catalogue import ROOT

FOLDER = ROOT / "monitoring"
ALERTS = FOLDER / "alerts.yaml"
ALERT_TESTS = FOLDER / "alerts.test.yaml"
DASHBOARDS = sorted((FOLDER / "dashboards").glob("*.json"))


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def alert_cases() -> list[dict[str, Any]]:
    """Of all promtool tests, the moments at which an alert is looked at."""
    tests = yaml.safe_load(ALERT_TESTS.read_text(encoding="utf-8"))["tests"]
    return [case for test in tests for case in test["alert_rule_test"]]


def panels(path: Path) -> list[dict[str, Any]]:
    board: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def dashboard_queries(path: Path) -> Iterator[str]:
    for panel in panels(path):
        for target in panel["targets"]:
            yield target["expr"]


def variables(path: Path) -> list[dict[str, Any]]:
    """Those that are filled from metrics."""
    board = json.loads(path.read_text(encoding="utf-8"))
    return [one for one in board["templating"]["list"] if one["type"] == "query"]
