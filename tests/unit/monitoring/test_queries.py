from __future__ import annotations

import pytest

from monitoring.catalogue import ShownMetric
from monitoring.queries import problems_of, series_of

_METRICS = [
    ShownMetric(name="trimtab_wait", kind="gauge", labels=("policy",), meaning="", part="dataflow"),
    ShownMetric(name="trimtab_tasks", kind="counter", labels=("outcome",), meaning="", part="rollout"),
    ShownMetric(name="trimtab_seconds", kind="histogram", labels=(), meaning="", part="operator"),
]
_SERIES = series_of(_METRICS)


@pytest.mark.parametrize(
    "query",
    [
        'sum by (rl_trimtab_dev_pool, outcome) (rate(trimtab_tasks_total{outcome="done"}[5m]))',
        "histogram_quantile(0.9, sum by (le) (rate(trimtab_seconds_bucket[$__rate_interval])))",
        "trimtab_wait > on (namespace) group_left () max by (namespace) (trimtab_seconds_count)",
        "max_over_time(avg_over_time(trimtab_wait[5m])[1h:5m] offset 5m) or vector(0)",
    ],
)
def test_a_query_of_what_exists(query: str) -> None:
    assert problems_of(query, _SERIES) == []


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("rate(trimtab_tasks[5m])", "there is no series trimtab_tasks"),
        ("absent(trimtab_gone == 1)", "there is no series trimtab_gone"),
        ('trimtab_wait{outcome="done"}', "nothing in the query has a label outcome"),
        ("sum by (pool) (trimtab_wait)", "nothing in the query has a label pool"),
        ("sum by (rl_trimtab_dev_policy) (trimtab_wait)", "nothing in the query has a label rl_trimtab_dev_policy"),
        ("sum by (le) (trimtab_seconds_count)", "nothing in the query has a label le"),
        ("trimtab_wait / on (polcy) trimtab_wait", "nothing in the query has a label polcy"),
    ],
)
def test_a_query_of_what_does_not(query: str, problem: str) -> None:
    assert problems_of(query, _SERIES) == [problem]


def test_no_query_at_all() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        problems_of("sum(trimtab_wait", _SERIES)
