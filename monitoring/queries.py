"""Whether a query can have an answer: it names only series that exist, and only labels that they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from promql_parser import AggregateExpr, BinaryExpr, Expr, VectorSelector, parse, walk

from monitoring.catalogue import ShownMetric

Series = Mapping[str, frozenset[str]]
"""By name, the labels that they have."""

_TARGET = frozenset({"namespace", "pod", "container", "instance", "job"})
_POD = _TARGET | {"rl_trimtab_dev_job", "rl_trimtab_dev_role"}
TARGET_LABELS = {
    "operator": _TARGET,
    "fabric": _POD,
    "dataflow": _POD,
    "rollout": _POD | {"rl_trimtab_dev_pool"},
    "trainer": _POD | {"rl_trimtab_dev_policy"},
}
"""What the scrape adds, by part: see docs/operations/README.md."""


def series_of(metrics: Iterable[ShownMetric]) -> dict[str, frozenset[str]]:
    return {name: labels | TARGET_LABELS[metric.part] for metric in metrics for name, labels in metric.series.items()}


def problems_of(query: str, series: Series) -> list[str]:
    """One sentence for each thing that the query names and that is not there. Raises ValueError where it is no query
    at all.
    """
    problems: list[str] = []

    def visit(node: Expr) -> None:
        if isinstance(node, VectorSelector):
            _judge_selector(node, series, problems)
        elif isinstance(node, AggregateExpr) and node.modifier is not None:
            _judge_labels(node.modifier.labels, _labels_below(node, series), problems)
        elif isinstance(node, BinaryExpr) and node.modifier is not None:
            _judge_labels(_matched_on(node), _labels_below(node, series), problems)

    walk(_readable(query), visit)
    return problems


def _readable(query: str) -> Expr:
    """With Grafana's own durations filled in."""
    return parse(re.sub(r"\$__(rate_interval|interval|range)", "5m", query))


def _judge_selector(selector: VectorSelector, series: Series, problems: list[str]) -> None:
    there = series.get(selector.name or "")
    if there is None:
        problems.append(f"there is no series {selector.name}")
        return
    _judge_labels([matcher.name for matcher in selector.matchers.matchers], there, problems)


def _judge_labels(named: Iterable[str], there: frozenset[str], problems: list[str]) -> None:
    problems.extend(f"nothing in the query has a label {label}" for label in named if label not in there)


def _labels_below(node: Expr, series: Series) -> frozenset[str]:
    return frozenset().union(*(series.get(selector.name or "", frozenset()) for selector in _selectors(node)))


def _matched_on(node: BinaryExpr) -> list[str]:
    matching = None if node.modifier is None else node.modifier.matching
    return [] if matching is None else list(matching.labels)


def _selectors(node: Expr) -> list[VectorSelector]:
    found: list[VectorSelector] = []

    def visit(below: Expr) -> None:
        if isinstance(below, VectorSelector):
            found.append(below)

    walk(node, visit)
    return found
