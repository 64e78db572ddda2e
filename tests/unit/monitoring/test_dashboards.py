from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from monitoring.catalogue import shown_metrics
from monitoring.queries import Series, problems_of, series_of
from tests.support.monitoring.rule_files import DASHBOARDS, alerts, dashboard_queries, panels, variables

_LABEL_VALUES = re.compile(r"label_values\((?P<query>.+), (?P<label>\w+)\)")


@pytest.fixture(scope="module")
def series() -> Series:
    return series_of(shown_metrics())


def test_there_is_one_of_a_job_and_one_of_the_operator() -> None:
    assert [path.stem for path in DASHBOARDS] == ["job", "operator"]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_ask_only_for_what_exists(path: Path, series: Series) -> None:
    assert {query: problems for query in dashboard_queries(path) if (problems := problems_of(query, series))} == {}


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_variables_are_filled_from_labels_that_exist(path: Path, series: Series) -> None:
    for variable in variables(path):
        asked = _LABEL_VALUES.fullmatch(variable["query"])
        assert asked is not None, variable["query"]
        assert problems_of(f"count by ({asked['label']}) ({asked['query']})", series) == []


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_legends_name_labels_that_the_query_keeps(path: Path) -> None:
    for panel in panels(path):
        for target in panel["targets"]:
            kept = set(re.findall(r"\w+", " ".join(re.findall(r" by \(([^)]*)\)", target["expr"]))))
            assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= kept, target


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_use_the_chosen_prometheus_and_have_places_of_their_own(path: Path) -> None:
    places = [tuple(panel["gridPos"][side] for side in "xy") for panel in panels(path)]
    assert len(set(places)) == len(places)
    ids = [panel["id"] for panel in panels(path)]
    assert len(set(ids)) == len(ids)
    assert {panel["datasource"]["uid"] for panel in panels(path)} == {"${datasource}"}


def test_alerts_that_panels_mention_exist() -> None:
    mentioned = {
        name for path in DASHBOARDS for name in re.findall(r"Trimtab[A-Z]\w+", path.read_text(encoding="utf-8"))
    }
    assert mentioned <= {alert["alert"] for alert in alerts()}
    assert len(mentioned) >= 10


def test_dashboards_have_different_ids() -> None:
    assert len({json.loads(path.read_text(encoding="utf-8"))["uid"] for path in DASHBOARDS}) == len(DASHBOARDS)
