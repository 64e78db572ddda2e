"""The annotation that says where a pool's things are can be written by anyone who may edit the pool."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trimtab.operator.reconcile.placement import (
    ANNOTATION,
    Placement,
    is_remote,
    placement_problem,
    placements_of,
    recorded_placement,
)

GOOD = {"home": "team", "secret": "far", "key": "kubeconfig", "namespace": "elsewhere"}


def _pool(written: object, **spec: Any) -> dict[str, Any]:
    annotations = {} if written is None else {ANNOTATION: written if isinstance(written, str) else json.dumps(written)}
    metadata = {"namespace": "team", "name": "p", "uid": "u", "resourceVersion": "1", "annotations": annotations}
    return {"metadata": metadata, "spec": {"jobRef": {"name": "job"}, **spec}}


def test_what_the_operator_wrote_is_read_back() -> None:
    placement = Placement(**GOOD)
    assert recorded_placement(_pool(placement.written())) == placement
    assert placement_problem(_pool(placement.written())) is None
    assert placement_problem(_pool(None)) is None


@pytest.mark.parametrize(
    "written",
    [
        {**GOOD, "secret": ["far"]},
        {**GOOD, "namespace": {"a": 1}},
        {**GOOD, "key": 3},
        {**GOOD, "secret": None},
        {**GOOD, "more": "fields"},
        {**GOOD, "secret": "../../kube-system/secrets/admin"},
        {**GOOD, "namespace": "x?dryRun=All"},
        {"home": "team"},
        [],
        "no JSON",
        "[" * 100_000,
        json.dumps({**GOOD, "secret": "x" * 100_000}),
        '{"home": "\ud800"}',
    ],
    ids=lambda written: str(written)[:40],
)
def test_anything_else_is_no_placement_and_is_told_with_the_fix(written: object) -> None:
    pool = _pool(written)
    assert recorded_placement(pool) is None
    assert placements_of(pool) == set()
    assert not is_remote(pool)
    problem = placement_problem(pool)
    assert problem is not None
    assert ANNOTATION in problem
    assert "remove it" in problem
    assert len(problem) < 500


def test_a_placement_of_another_namespace_is_none() -> None:
    """It would choose the namespace from which the operator reads a Secret."""
    foreign = _pool({**GOOD, "home": "kube-system"})
    assert recorded_placement(foreign) is None
    assert placements_of(foreign) == set()
    assert "kube-system" not in str(placement_problem(foreign))
    assert "of another namespace" in str(placement_problem(foreign))


@pytest.mark.parametrize(
    "cluster",
    [
        "far",
        ["far"],
        {"kubeconfigSecret": "far"},
        {"kubeconfigSecret": {"name": ["far"], "key": "kubeconfig"}},
        {"kubeconfigSecret": {"name": "far"}},
        {"kubeconfigSecret": {"name": "far", "key": "kubeconfig"}, "namespace": {"a": 1}},
    ],
    ids=str,
)
def test_a_spec_that_no_schema_has_seen_is_no_placement(cluster: object) -> None:
    assert placements_of(_pool(None, cluster=cluster)) == set()
