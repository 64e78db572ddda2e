from __future__ import annotations

from pathlib import Path

import pytest

from monitoring.catalogue import MetricOutsideClass, MetricsClass, ShownMetric, metrics_classes, shown_metrics
from monitoring.metrics_table import main, metrics_page


def test_the_page_is_current() -> None:
    assert main(["--check"]) == 0, "run make metrics"


def test_check_says_what_to_do_and_changes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "docs/reference").mkdir(parents=True)
    assert main(["--check"], root=tmp_path) == 1
    assert "docs/reference/metrics.md is stale: run make metrics" in capsys.readouterr().err
    assert main([], root=tmp_path) == 0
    assert main(["--check"], root=tmp_path) == 0
    assert main(["--chekc"], root=tmp_path) == 2


def test_every_part_has_metrics_with_what_they_mean() -> None:
    metrics = shown_metrics()
    assert {metric.part for metric in metrics} == {"dataflow", "fabric", "operator", "rollout", "trainer"}
    assert [metric.name for metric in metrics if not metric.meaning] == []


def test_a_row_for_each() -> None:
    page = metrics_page(
        [
            ShownMetric(
                name="trimtab_waits", kind="counter", labels=("policy", "stage"), meaning="Why", part="dataflow"
            ),
            ShownMetric(name="trimtab_age", kind="gauge", labels=(), meaning="How old", part="rollout"),
        ]
    )
    assert "## Dataflow\n" in page
    assert "| `trimtab_waits_total` | counter | `policy`, `stage` | Why |\n" in page
    assert "## Rollout\n" in page
    assert "| `trimtab_age` | gauge |  | How old |\n" in page


def _source(root: Path, text: str) -> None:
    module = root / "runtime/dataflow/trimtab/dataflow/figures.py"
    module.parent.mkdir(parents=True)
    module.write_text(text, encoding="utf-8")


def test_classes_are_found_by_their_constructor(tmp_path: Path) -> None:
    _source(
        tmp_path,
        """
class Figures:
    def __init__(self, metrics: Metrics) -> None:
        self._age = metrics.gauge("age", "How old")

class Reader:
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
""",
    )
    assert metrics_classes(tmp_path) == [MetricsClass(module="trimtab.dataflow.figures", name="Figures")]


@pytest.mark.parametrize(
    "text",
    [
        "def serve(metrics):\n    metrics.counter('served', 'Requests')\n",
        "class Desk:\n    def __init__(self, pod: Pod) -> None:\n        pod.metrics.gauge('open', 'Desks')\n",
        "class Desk:\n    def __init__(self, metrics: Metrics, at: int) -> None:\n        metrics.gauge('a', 'Any')\n",
    ],
)
def test_a_metric_that_would_be_missed_is_an_error(text: str, tmp_path: Path) -> None:
    _source(tmp_path, text)
    with pytest.raises(MetricOutsideClass, match=r"trimtab\.dataflow\.figures, line [23]: make the metric in a class"):
        metrics_classes(tmp_path)
