"""Small jobs for tests."""

from __future__ import annotations

from typing import Any

from tests.support.dataflow.books import BATCH, GROUP, STALENESS, WINDOW
from trimtab.api.job import RLJob, RLJobSpec
from trimtab.api.validation import parse


def job(
    name: str = "job",
    *,
    policies: int | list[dict[str, Any]] = 1,
    trainer: dict[str, Any] | None = None,
    **fields: Any,
) -> RLJob:
    """`policies` is how many, or what they are."""
    listed = policies if isinstance(policies, list) else [{"name": one} for one in ["solver", "judge"][:policies]]
    manifest = {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": name},
        "spec": {
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {
                "prompts": [{"name": "train", "jsonl": {"uri": "prompts.jsonl"}}],
                "groupSize": GROUP,
                "batchSize": BATCH,
                "maxStaleness": STALENESS,
            },
            "autoscaling": {"windowSteps": WINDOW},
            "policies": [
                {
                    **({} if policy.get("frozen") else {"model": {"uri": "model"}}),
                    **({"trainer": trainer} if trainer else {}),
                    **policy,
                }
                for policy in listed
            ],
            "pools": [{"name": "local", "replicas": 1}],
            "maxSteps": 1000,
        },
    }
    for key, value in fields.items():
        inherited = manifest["spec"].get(key)  # type: ignore[attr-defined]
        merged = {**inherited, **value} if isinstance(inherited, dict) else value
        manifest["spec"][key] = merged  # type: ignore[index]
    parsed = parse(manifest)
    assert isinstance(parsed, RLJob)
    return parsed


def spec(**fields: Any) -> RLJobSpec:
    return job(**fields).spec
