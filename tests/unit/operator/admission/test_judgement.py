"""What the API server is told of an object that is about to be written."""

from __future__ import annotations

from typing import Any

from tests.support.api.manifests import changed, job, pool, trainer
from trimtab.api.job import RLJob
from trimtab.operator.admission.judgement import Judgement, judge

BAD = {"spec.policies.0.sampling": {"temperature": 0}, "spec.data.shards": 2}


def seen(manifest: dict[str, Any]) -> dict[str, Any]:
    """As the API server shows it: with fields of its own."""
    added = {"uid": "u", "resourceVersion": "7", "managedFields": [{"manager": "kubectl"}], "creationTimestamp": "t"}
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": "n", **added}, "status": {"conditions": []}}


def test_good_objects_of_all_kinds_are_taken() -> None:
    for manifest in (job(), pool(), trainer()):
        assert judge(seen(manifest), old=None, job=None) == Judgement()


def test_every_problem_is_named_with_its_field_at_once() -> None:
    judgement = judge(seen(changed(job(), BAD)), old=None, job=None)
    assert judgement.refusal is not None
    assert [line.split(":")[0] for line in judgement.refusal.splitlines()] == [
        "spec.data.shards",
        "spec.policies[0].sampling.temperature",
    ]


def test_a_path_that_no_pod_has_is_refused_with_the_fix() -> None:
    judgement = judge(seen(changed(job(), {"spec.policies.0.model.uri": "model"})), old=None, job=None)
    assert judgement.refusal is not None
    assert "spec.policies[0].model.uri (model): relative to a manifest's folder" in judgement.refusal
    assert "give an absolute path" in judgement.refusal


def test_a_bad_object_that_is_there_can_be_labelled_finalized_and_deleted() -> None:
    bad = seen(changed(job(), BAD))
    assert judge(changed(bad, {"metadata.labels": {"a": "b"}}), old=bad, job=None) == Judgement()
    leaving = changed(bad, {"metadata.deletionTimestamp": "now", "spec.maxSteps": 3})
    assert judge(leaving, old=bad, job=None) == Judgement()
    assert judge(changed(bad, {"spec.maxSteps": 3}), old=bad, job=None).refusal is not None


def test_a_pool_that_auto_owns_is_scaled_with_a_warning() -> None:
    auto = RLJob.model_validate(changed(job(), {"spec.autoscaling": {"mode": "Auto", "maxReplicas": 8}}))
    before = seen(pool())
    judgement = judge(changed(before, {"spec.replicas": 5}), old=before, job=auto)
    assert judgement.refusal is None
    assert "autoscaler" in judgement.warnings[0]
    assert judge(before, old=None, job=auto).warnings == ()


def test_a_spec_that_others_would_wait_for_is_refused() -> None:
    judgement = judge(seen(changed(job(), {"spec.workflow.args": {"a": "x" * 300_000}})), old=None, job=None)
    assert judgement.refusal is not None
    assert judgement.refusal.startswith("spec: has more than 262144 bytes; put what is long into")
