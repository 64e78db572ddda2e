"""Whether a manifest may take the place of an earlier one of the same job: the CRD's transition rules, evaluated here
as the API server does upon an update.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trimtab.api.cel_rules import RuleEvaluationError, holds, typed
from trimtab.api.job import RLJob
from trimtab.api.schema import Schema, structural_schema
from trimtab.api.validation import Path, Problem


def transition_problems(before: RLJob, after: RLJob) -> list[Problem]:
    """What may not be changed, by its field; empty when `after` may follow."""
    schema = structural_schema(RLJob)
    was, now = (job.model_dump(mode="json", by_alias=True, exclude_none=True) for job in (before, after))
    return list(_below(was["spec"], now["spec"], schema["properties"]["spec"], ("spec",)))


def _below(was: Any, now: Any, schema: Schema, path: Path) -> Iterator[Problem]:
    for rule in schema.get("x-kubernetes-validations", ()):
        if "oldSelf" not in rule["rule"]:
            continue
        at = (*path, *rule.get("fieldPath", "").split(".")[1:])
        try:
            if not holds(rule["rule"], typed(now, schema), before=typed(was, schema)):
                yield Problem(at, rule["message"])
        except RuleEvaluationError as error:
            yield Problem(at, f"rule {rule['rule']!r} cannot be evaluated: {error}")
    if isinstance(was, dict) and isinstance(now, dict):
        for name, field in schema.get("properties", {}).items():
            if name in was and name in now:
                yield from _below(was[name], now[name], field, (*path, name))
    elif isinstance(was, list) and isinstance(now, list):
        yield from _items(was, now, schema, path)


def _items(was: list[Any], now: list[Any], schema: Schema, path: Path) -> Iterator[Problem]:
    """Only items of lists with keys are the same ones; those of others are new whenever the list is."""
    keys = schema.get("x-kubernetes-list-map-keys")
    if not keys:
        return
    known = {tuple(item.get(key) for key in keys): item for item in was}
    for index, item in enumerate(now):
        identity = tuple(item.get(key) for key in keys)
        if identity in known:
            yield from _below(known[identity], item, schema["items"], (*path, index))
