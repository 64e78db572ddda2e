"""Every metric that the code can show, found in the code itself: classes whose constructor takes a Metrics and nothing
else are made on a fresh registry, and a metric that is made anywhere else is an error.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric

from trimtab.fabric.metrics import PREFIX, Metrics

ROOT = Path(__file__).resolve().parents[1]
_SOURCES = ("operator", "runtime/*")
_MAKERS = ("counter", "gauge", "histogram")
_SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


class MetricOutsideClass(ValueError):
    """A metric is made where the catalogue cannot find it."""


@dataclass(frozen=True, kw_only=True)
class ShownMetric:
    """A metric as Prometheus gets it."""

    name: str
    """Without the suffixes that its kind adds to series."""
    kind: str
    labels: tuple[str, ...]
    meaning: str
    part: str
    """Which process has it, such as `dataflow`."""

    @property
    def series(self) -> dict[str, frozenset[str]]:
        """The labels of each series that queries may name."""
        own = {self.name + suffix: frozenset(self.labels) for suffix in _SUFFIXES[self.kind]}
        return {name: labels | {"le"} if name.endswith("_bucket") else labels for name, labels in own.items()}


@dataclass(frozen=True, kw_only=True)
class MetricsClass:
    module: str
    name: str

    @property
    def part(self) -> str:
        return self.module.split(".")[1]


def shown_metrics(root: Path = ROOT) -> list[ShownMetric]:
    """All of them, by part and name."""
    found = {metric.name: metric for owner in metrics_classes(root) for metric in _metrics_of(owner)}
    return sorted(found.values(), key=lambda metric: (metric.part, metric.name))


def metrics_classes(root: Path = ROOT) -> list[MetricsClass]:
    """Raises MetricOutsideClass."""
    found = []
    for folder in sorted(match for pattern in _SOURCES for match in root.glob(pattern)):
        for path in sorted(folder.rglob("*.py")):
            module, text = ".".join(path.relative_to(folder).with_suffix("").parts), path.read_text(encoding="utf-8")
            # Few files have metrics, and parsing all of them would take long.
            if module != Metrics.__module__ and any(f".{maker}(" in text for maker in _MAKERS):
                found += _classes_in(ast.parse(text), module)
    return found


def _classes_in(tree: ast.Module, module: str) -> list[MetricsClass]:
    owners = [node for node in tree.body if isinstance(node, ast.ClassDef) and _takes_only_metrics(node)]
    inside = {call for owner in owners for call in _metric_calls(owner)}
    for call in _metric_calls(tree):
        if call not in inside:
            raise MetricOutsideClass(
                f"{module}, line {call.lineno}: make the metric in a class whose constructor takes `metrics: Metrics` "
                "and nothing else, so that docs/reference/metrics.md can list it"
            )
    return [MetricsClass(module=module, name=owner.name) for owner in owners if any(_metric_calls(owner))]


def _takes_only_metrics(node: ast.ClassDef) -> bool:
    for item in node.body:
        if isinstance(item, ast.FunctionDef) and item.name == "__init__":
            own = [*item.args.posonlyargs, *item.args.args, *item.args.kwonlyargs][1:]
            return [ast.unparse(argument.annotation) for argument in own if argument.annotation] == [Metrics.__name__]
    return False


def _metric_calls(node: ast.AST) -> Iterator[ast.Call]:
    """Calls such as metrics.gauge(…)."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _MAKERS:
            owner = call.func.value
            if "metrics" in (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")):
                yield call


def _metrics_of(owner: MetricsClass) -> Iterator[ShownMetric]:
    metrics = Metrics()
    getattr(importlib.import_module(owner.module), owner.name)(metrics)
    for family, labels in _families(metrics):
        if family.name.startswith(PREFIX):
            yield ShownMetric(
                name=family.name,
                kind=family.type,
                labels=labels,
                meaning=family.documentation.rstrip("."),
                part=owner.part,
            )


def _families(metrics: Metrics) -> Iterator[tuple[Metric, tuple[str, ...]]]:
    # The registry has no public way to the labels of a metric that has no series yet.
    for collector in list(metrics.registry._collector_to_names):
        for family in collector.collect():
            yield family, tuple(getattr(collector, "_labelnames", ()))
