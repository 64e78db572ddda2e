"""The three kinds on a real API server, through the real kubectl: what a person sees and may do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.api.complete import complete_job, complete_pool, complete_trainer
from tests.support.api.manifests import Manifest, changed, job, pool, staged_job, trainer
from tests.support.control_planes import Kubectl
from trimtab.api.crd import KINDS
from trimtab.api.schema import fill_defaults, structural_schema
from trimtab.api.validation import problems

NOW = "2026-08-01T12:00:00Z"


def _apply(kubectl: Kubectl, namespace: str, *manifests: Manifest) -> None:
    kubectl("apply", "--server-side", "-n", namespace, "-f", "-", stdin="\n---\n".join(map(json.dumps, manifests)))


def _get(kubectl: Kubectl, namespace: str, kind: str, name: str) -> dict[str, Any]:
    shown = kubectl("get", kind, name, "-n", namespace, "-o", "json", "--show-managed-fields").stdout
    found: dict[str, Any] = json.loads(shown)
    return found


def _set_status(kubectl: Kubectl, namespace: str, kind: str, name: str, status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", kind, name, "-n", namespace, "--subresource=status", "--type=merge", "-p", patch)


def _condition(kind: str, reason: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": "", "lastTransitionTime": NOW}


def test_the_server_stores_what_the_types_say(kubectl: Kubectl, namespace: str) -> None:
    """Defaults are filled in by the schema, templates are kept whole, and both agree with the offline reading."""
    minimal = [job("small"), pool("small"), trainer("small")]
    complete = [complete_job(), complete_pool(), complete_trainer()]
    _apply(kubectl, namespace, *minimal, *complete)
    models = {kind.name: kind.model for kind in KINDS}
    for manifest in minimal + complete:
        stored = _get(kubectl, namespace, manifest["kind"], manifest["metadata"]["name"])
        assert stored["spec"] == fill_defaults(manifest, structural_schema(models[manifest["kind"]]))["spec"]
        assert problems(stored) == []
        read = models[manifest["kind"]].model_validate(stored)
        assert models[manifest["kind"]].model_validate(read.model_dump(mode="json")) == read
    assert _get(kubectl, namespace, "rlj", "arithmetic")["spec"]["pools"][1]["template"]["spec"]["anything"] == [
        "goes",
        1,
    ]


def test_columns_answer_whether_it_learns_waits_and_how_big_it_is(kubectl: Kubectl, namespace: str) -> None:
    _apply(kubectl, namespace, job(), pool(), trainer())
    learning = {"step": 41, "reward": 0.73, "waitingFraction": 0.12}
    _set_status(
        kubectl,
        namespace,
        "rlj",
        "arithmetic",
        {**learning, "replicas": 6, "readyReplicas": 5, "conditions": [_condition("Succeeded", "Learning")]},
    )
    _set_status(kubectl, namespace, "tr", "arithmetic-solver", {**learning, "version": 40, "readyReplicas": 2})
    pool_status = {"readyReplicas": 2, "drainingReplicas": 1, "conditions": [_condition("Ready", "AllReady")]}
    _set_status(kubectl, namespace, "rp", "arithmetic-burst", pool_status)
    header, row = kubectl("get", "rlj", "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "STATE", "STEP", "REWARD", "WAITING", "ROLLOUT", "READY", "AGE"]
    assert row.split()[:-1] == ["arithmetic", "Learning", "41", "0.73", "0.12", "6", "5"]
    header, row = kubectl("get", "rp", "-n", namespace).stdout.splitlines()
    assert header.split() == ["NAME", "JOB", "DESIRED", "READY", "DRAINING", "STATE", "AGE"]
    assert row.split()[:-1] == ["arithmetic-burst", "arithmetic", "2", "2", "1", "AllReady"]
    header, row = kubectl("get", "tr", "-n", namespace, "-o", "wide").stdout.splitlines()
    assert header.split()[:8] == ["NAME", "JOB", "POLICY", "STEP", "REWARD", "WAITING", "VERSION", "RANKS"]
    assert row.split()[:8] == ["arithmetic-solver", "arithmetic", "solver", "41", "0.73", "0.12", "40", "2"]
    everything = kubectl("get", "rl", "-n", namespace, "-o", "name").stdout.split()
    assert [name.split(".")[0] for name in everything] == ["rljob", "rolloutpool", "trainer"]


def test_explain_documents_every_level(kubectl: Kubectl) -> None:
    explained = kubectl("explain", "rlj.spec.data").stdout
    assert "Versions by which the oldest trained token of a sample may lag" in explained
    assert "Python that has the engine installed" in kubectl("explain", "rlj.spec.pools.engine").stdout
    assert "Pods that exist, draining ones included." in kubectl("explain", "rp.status.replicas").stdout
    assert "enum: m2po, grpo" in kubectl("explain", "tr.spec.algorithm").stdout


def test_a_pool_scales_and_carries_its_selector(kubectl: Kubectl, namespace: str) -> None:
    _apply(kubectl, namespace, changed(pool(), {"spec.maxReplicas": 8}))
    _set_status(kubectl, namespace, "rp", "arithmetic-burst", {"replicas": 2, "selector": "pool=burst"})
    kubectl("scale", "rp/arithmetic-burst", "--replicas=5", "--current-replicas=2", "-n", namespace)
    path = f"/apis/rl.trimtab.dev/v1alpha1/namespaces/{namespace}/rolloutpools/arithmetic-burst/scale"
    scale = json.loads(kubectl("get", "--raw", path).stdout)
    assert (scale["spec"], scale["status"]) == ({"replicas": 5}, {"replicas": 2, "selector": "pool=burst"})
    refused = kubectl("scale", "rp/arithmetic-burst", "--replicas=9", "-n", namespace, check=False)
    assert refused.returncode != 0
    assert "spec.replicas" in refused.stderr


def test_a_pool_without_replicas_can_be_scaled_too(kubectl: Kubectl, namespace: str) -> None:
    manifest = pool()
    del manifest["spec"]["replicas"]
    _apply(kubectl, namespace, manifest)
    kubectl("scale", "rp/arithmetic-burst", "--replicas=3", "-n", namespace)
    assert _get(kubectl, namespace, "rp", "arithmetic-burst")["spec"]["replicas"] == 3


def test_status_is_apart_from_spec_and_conditions_merge_by_type(kubectl: Kubectl, namespace: str) -> None:
    _apply(kubectl, namespace, changed(job(), {"status": {"step": 7}}))
    stored = _get(kubectl, namespace, "rlj", "arithmetic")
    assert "status" not in stored
    for writer, kind in (("operator", "Succeeded"), ("autoscaler", "ScalingActive")):
        status = {"observedGeneration": 1, "conditions": [_condition(kind, "Learning")]}
        manifest = {**job(), "status": status}
        del manifest["spec"]
        kubectl(
            *("apply", "--server-side", "--subresource=status", "--validate=false", f"--field-manager={writer}"),
            *("-n", namespace, "-f", "-"),
            stdin=json.dumps(manifest),
        )
    after = _get(kubectl, namespace, "rlj", "arithmetic")
    assert [condition["type"] for condition in after["status"]["conditions"]] == ["Succeeded", "ScalingActive"]
    assert after["metadata"]["generation"] == stored["metadata"]["generation"]


def test_two_people_own_two_pools_of_one_job(kubectl: Kubectl, namespace: str) -> None:
    """Lists are merged by name: whoever adds a pool does not have to know the others."""
    _apply(kubectl, namespace, job())
    extra = {**job(), "spec": {"pools": [{"name": "borrowed", "replicas": 3}]}}
    kubectl("apply", "--server-side", "--field-manager=colleague", "-n", namespace, "-f", "-", stdin=json.dumps(extra))
    pools = _get(kubectl, namespace, "rlj", "arithmetic")["spec"]["pools"]
    assert {entry["name"]: entry["replicas"] for entry in pools} == {"home": 2, "spot": 1, "borrowed": 3}


IMMUTABLE: list[tuple[str, Manifest, str, Any]] = [
    ("entrypoint", job(), "spec.workflow.entrypoint", "team.workflows:Other"),
    ("groupSize", job(), "spec.data.groupSize", 16),
    ("seed", job(), "spec.data.seed", 1),
    ("managedBy", job(), "spec.managedBy", "kueue.x-k8s.io/multikueue"),
    ("model", job(), "spec.policies.0.model.uri", "/models/other"),
    ("lora", job(), "spec.policies.0.lora", {"rank": 8}),
    ("policies", job(), "spec.policies", [*job()["spec"]["policies"], {"name": "third", "model": {"uri": "m"}}]),
    ("policies", job(), "spec.policies.1.name", "renamed"),
    ("stages", job(), "spec.stages", [{"name": "own", "computes": "Custom", "plugin": {"entrypoint": "a:B"}}]),
    ("jobRef", pool(), "spec.jobRef.name", "other"),
    ("jobRef", trainer(), "spec.jobRef.name", "other"),
    ("policy", trainer(), "spec.policy", "other"),
    ("model", trainer(), "spec.model", {"uri": "/models/other"}),
]


def test_immutable_fields_are_held(kubectl: Kubectl, namespace: str) -> None:
    _apply(kubectl, namespace, job(), pool(), trainer())
    for field, manifest, path, value in IMMUTABLE:
        other = json.dumps(changed(manifest, {path: value}))
        refused = kubectl("replace", "--dry-run=server", "-n", namespace, "-f", "-", stdin=other, check=False)
        assert refused.returncode != 0, path
        assert f"spec.{field}" in refused.stderr or f".{field}" in refused.stderr, (path, refused.stderr)
        assert "immutable" in refused.stderr or "neither added" in refused.stderr, (path, refused.stderr)


def test_stages_stay_as_they_are(kubectl: Kubectl, namespace: str) -> None:
    _apply(kubectl, namespace, staged_job())
    for path, value in [
        ("spec.stages", []),
        ("spec.stages.0.timeoutSeconds", 7),
        ("spec.stages.2.plugin.args", {"strict": True}),
        ("spec.stages.2.needs", []),
    ]:
        other = json.dumps(changed(staged_job(), {path: value}))
        refused = kubectl("replace", "--dry-run=server", "-n", namespace, "-f", "-", stdin=other, check=False)
        assert refused.returncode != 0, path
        assert "stages is immutable" in refused.stderr, (path, refused.stderr)
    other_pool = changed(staged_job(), {"spec.pools.1.replicas": 3})
    kubectl("replace", "--dry-run=server", "-n", namespace, "-f", "-", stdin=json.dumps(other_pool))


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.suspend", True), ("spec.data.batchSize", 512), ("spec.pools", [{"name": "only"}]), ("spec.maxSteps", 7)],
)
def test_what_may_change_while_it_runs_does(kubectl: Kubectl, namespace: str, path: str, value: Any) -> None:
    kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(job()))
    done = kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(changed(job(), {path: value})))
    assert done.stdout.strip() == "rljob.rl.trimtab.dev/arithmetic configured"
