"""The manifest of a job whose ranks a test starts itself: nothing in it is sampled or read."""

from __future__ import annotations

from pathlib import Path

import yaml

from trimtab.api.policy import Policy
from trimtab.fabric.bus.topology import JobTopology


def write_rank_job(
    path: Path, topology: JobTopology, policy: Policy, *, group_size: int, max_staleness: int, max_steps: int = 100
) -> None:
    """A batch is one group."""
    manifest = {
        "apiVersion": "rl.trimtab.dev/v1alpha1",
        "kind": "RLJob",
        "metadata": {"name": topology.job, "namespace": topology.namespace},
        "spec": {
            "maxSteps": max_steps,
            "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
            "data": {
                "prompts": [{"name": "x", "jsonl": {"uri": "x"}}],
                "groupSize": group_size,
                "batchSize": group_size,
                "maxStaleness": max_staleness,
            },
            "policies": [policy.model_dump(mode="json", exclude_none=True)],
            "pools": [{"name": "local"}],
        },
    }
    path.write_text(yaml.safe_dump(manifest))
