"""Helm's own opinion of the chart, and what Helm does not look at."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from typing import Any

import helm_python
import pytest

from tests.support.chart.rendering import CHART, ROOT, SETS, name_of, objects, templates, values_of

_WARNING = 2
_RELEASE_NAMES = ("trimtab", "rl", "a-release-with-the-longest-name-that-helm-lets-pass-by")


@pytest.mark.parametrize("name", SETS)
def test_lint_is_clean(name: str) -> None:
    report: dict[str, Any] = helm_python.lint(CHART, values_of(name), strict=True)
    assert not report["errors"]
    assert not [message for message in report["messages"] if message["severity"] >= _WARNING]


def test_versions_are_the_projects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with helm_python.Chart.load(CHART) as chart:
        assert chart.metadata["appVersion"] == project["version"]


@pytest.mark.parametrize("release", _RELEASE_NAMES)
def test_names_fit_and_are_unique(release: str) -> None:
    entries = objects({}, release=release)
    seen = {(entry["kind"], entry["metadata"].get("namespace"), name_of(entry)) for entry in entries}
    assert len(seen) == len(entries)
    # A StatefulSet's pods have a label with its name and a revision's digest.
    assert all(len(name_of(entry)) <= 52 for entry in entries if entry["kind"] == "StatefulSet")
    assert all(len(name_of(entry)) <= 63 for entry in entries if entry["kind"] == "Service")


@pytest.mark.parametrize("name", SETS)
def test_everything_says_whose_it_is(name: str) -> None:
    for entry in objects(values_of(name)):
        labels = entry["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "trimtab"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"


def test_notes_say_what_is_only_for_evaluation() -> None:
    assert "NATS and object storage run in one pod each" in templates({})["NOTES.txt"]
    production = templates(values_of("existing"))["NOTES.txt"]
    assert "evaluation" not in production
    assert "the whole cluster" in production
    assert "gRPC asks for no credentials" in templates({"networkPolicy": {"enabled": False}})["NOTES.txt"]
    assert "team-a, team-b" in templates(values_of("namespaced"))["NOTES.txt"]


def test_generated_files_are_fresh() -> None:
    checked = subprocess.run(
        [sys.executable, str(CHART / "generate.py"), "--check"], capture_output=True, text=True, timeout=600
    )
    assert checked.returncode == 0, checked.stderr
