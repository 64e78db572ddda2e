"""The chart as the real Helm renders it, as objects."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts/trimtab"
VALUE_SETS = Path(__file__).parent / "value_sets"
SETS = tuple(sorted(file.stem for file in VALUE_SETS.glob("*.yaml")))
RELEASE = "trimtab"
NAMESPACE = "trimtab-system"

Object = dict[str, Any]


def values_of(name: str) -> dict[str, Any]:
    """A value set of ours."""
    values: dict[str, Any] = yaml.safe_load((VALUE_SETS / f"{name}.yaml").read_text(encoding="utf-8"))
    return values


@cache
def loaded_chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def templates(values: dict[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE) -> dict[str, str]:
    """Every template's text by its path below templates."""
    rendered = loaded_chart().render(values, name=release, namespace=namespace)
    return {path.partition("/templates/")[2]: text for path, text in rendered.items()}


def objects(values: dict[str, Any], *, release: str = RELEASE, namespace: str = NAMESPACE) -> list[Object]:
    """What would be installed, in a fixed order. Rendered once for all tests; each has a copy of its own."""
    return copy.deepcopy(_parsed(json.dumps(values, sort_keys=True), release, namespace))


@cache
def _parsed(values: str, release: str, namespace: str) -> list[Object]:
    texts = templates(json.loads(values), release=release, namespace=namespace)
    found = [
        entry
        for path, text in texts.items()
        if path.endswith(".yaml")
        for entry in yaml.load_all(text, Loader=yaml.CSafeLoader)
        if entry is not None
    ]
    return sorted(found, key=lambda entry: (entry["kind"], entry["metadata"].get("namespace", ""), name_of(entry)))


def of_kind(entries: list[Object], *kinds: str) -> list[Object]:
    return [entry for entry in entries if entry["kind"] in kinds]


def named(entries: list[Object], kind: str, name: str) -> Object:
    (found,) = [entry for entry in of_kind(entries, kind) if name_of(entry) == name]
    return found


def name_of(entry: Object) -> str:
    return str(entry["metadata"]["name"])


def pod_templates(entries: list[Object]) -> Iterator[tuple[str, Object]]:
    """The name of each workload, and the pod it makes."""
    for workload in of_kind(entries, "Deployment", "StatefulSet", "DaemonSet", "Job"):
        yield name_of(workload), workload["spec"]["template"]
