from __future__ import annotations

from typing import Any

import pytest

from tests.support.api.manifests import BAD_MANIFESTS, REMOVED, Bad, changed, job, pool
from trimtab.api.pool import RolloutPool
from trimtab.api.validation import InvalidManifestError, is_ours, parse, problems


@pytest.mark.parametrize("bad", BAD_MANIFESTS, ids=lambda bad: bad.id)
def test_a_bad_manifest_is_refused_by_field(bad: Bad) -> None:
    found = problems(bad.manifest)
    assert any(bad.field in problem.field for problem in found), found
    with pytest.raises(InvalidManifestError, match="."):
        parse(bad.manifest)


def _only(changes: dict[str, Any]) -> tuple[str, str]:
    (problem,) = problems(changed(job(), changes))
    return problem.field, problem.message


@pytest.mark.parametrize(
    ("changes", "field", "fix"),
    [
        ({"spec.data.groupsize": 8}, "spec.data.groupsize", "did you mean groupSize?"),
        ({"spec.polices": []}, "spec.polices", "did you mean policies?"),
        ({"spec.zzz": 1}, "spec.zzz", "remove it"),
        ({"spec.pools.0.engine.name": "sglan"}, "spec.pools[0].engine.name", "did you mean sglang?"),
        ({"spec.autoscaling.mode": "dryrun"}, "spec.autoscaling.mode", "did you mean DryRun?"),
        ({"spec.data.groupSize": "8"}, "spec.data.groupSize", "remove the quotes"),
        ({"spec.policies.0.model.uri": 7}, "spec.policies[0].model.uri", "put it in quotes"),
        ({"spec.data.prompts.0.jsonl.uri": None}, "spec.data.prompts[0].jsonl.uri", "is required"),
        ({"spec.pools.0": None}, "spec.pools[0]", "give it a value or remove the line"),
        ({"kind": "RlJob"}, "kind", "did you mean RLJob?"),
        ({"apiVersion": "rl.trimtab.dev/v1"}, "apiVersion", "must be rl.trimtab.dev/v1alpha1"),
        ({"metadata.name": REMOVED}, "metadata.name", "give the object a name"),
        ({"metadata.labls": {}}, "metadata.labls", "did you mean labels?"),
        ({"metadata.labels": {"a": 1}}, "metadata.labels.a", "put it in quotes"),
        (
            {"spec.pools.0.resources.limits": {"nvidia.com/gpu": []}},
            "spec.pools[0].resources.limits['nvidia.com/gpu']",
            "is a list",
        ),
    ],
)
def test_a_problem_names_the_field_and_the_fix(changes: dict[str, Any], field: str, fix: str) -> None:
    found_field, message = _only(changes)
    assert found_field == field
    assert fix in message


def test_every_problem_is_reported_at_once() -> None:
    found = problems(
        changed(
            job(),
            {
                "spec.data.batchSize": 3,
                "spec.pools.0.engine.name": "tgi",
                "spec.pools.1.minReplicas": 9,
                "spec.policies.0.algorithm.name": 3,
                "spec.autoscaling.tauLow": 0.5,
                "spec.nonsense": {},
            },
        )
    )
    assert [problem.field for problem in found] == [
        "spec.data.batchSize",
        "spec.policies[0].algorithm.name",
        "spec.pools[0].engine.name",
        "spec.pools[1].replicas",
        "spec.autoscaling.tauLow",
        "spec.nonsense",
    ]


@pytest.mark.parametrize("value", [None, 1, "x", [], [job()], {}, {"kind": []}, {"apiVersion": {}, "kind": {}}])
def test_what_is_no_object_at_all_is_a_problem(value: Any) -> None:
    assert problems(value)


@pytest.mark.parametrize("metadata", [None, [], "x", {"name": 7}, {"name": []}, {"generateName": 7}, {"name": ""}])
def test_odd_metadata_is_a_problem(metadata: Any) -> None:
    assert any("metadata" in problem.field for problem in problems(changed(job(), {"metadata": metadata})))


def test_a_generated_name_is_checked_with_its_suffix() -> None:
    assert problems(changed(pool(), {"metadata": {"generateName": "p" * 44}})) == []
    assert problems(changed(pool(), {"metadata": {"generateName": "p" * 45}}))


def test_parse_fills_in_defaults() -> None:
    read = parse(pool())
    assert isinstance(read, RolloutPool)
    assert (read.spec.engine.name, read.spec.min_replicas, read.spec.update.max_unavailable) == ("builtin", 0, "25%")


def test_only_other_groups_are_left_alone() -> None:
    assert is_ours(job())
    assert is_ours({"kind": "RLJob", "apiVersion": "v1"})
    assert is_ours({"a": 1})
    assert not is_ours({"apiVersion": "v1", "kind": "ConfigMap"})


def test_a_thousand_unknown_fields_are_named_up_to_a_point() -> None:
    found = problems(changed(job(), {f"spec.field-{number}": 1 for number in range(1000)}))
    assert len(found) == 51
    assert found[-1].message == "has 950 more fields that are not known here: remove them"


def test_ten_thousand_pools_are_one_problem() -> None:
    crowd = [{"name": f"pool-{number}"} for number in range(10_000)]
    assert _only({"spec.pools": crowd}) == ("spec.pools", "has 10000 items, at most 128 are allowed")


def test_an_object_too_large_to_store_is_refused_by_its_largest_field() -> None:
    field, message = _only({"spec.workflow.args": {"table": "x" * 1_500_000}})
    assert field == "spec.workflow.args.table"
    assert "fit in etcd" in message
