"""The quickstart as a job in a cluster: its files on a volume, and threads that leave room for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.support.operator.scene import Scene
from trimtab.kube.resources import RLJOBS


def in_a_cluster(file: Path) -> dict[str, Any]:
    """With small batches, for tests that are not about learning."""
    job = on_a_volume(file)
    job["spec"]["data"]["batchSize"] = 32
    job["spec"]["policies"][0]["trainer"]["checkpoint"] = {"everySteps": 2}
    job["spec"]["pools"][0]["gracePeriodSeconds"] = 10
    return job


def on_a_volume(file: Path) -> dict[str, Any]:
    """The manifest as it is, but for where its files are."""
    job: dict[str, Any] = yaml.safe_load(file.read_text())
    spec = job["spec"]
    few_threads = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "TOKENIZERS_PARALLELISM", "value": "false"}]
    mount = [{"name": "files", "mountPath": "/quickstart", "readOnly": True}]

    def template(*containers: str) -> dict[str, Any]:
        entries = [{"name": name, "env": list(few_threads), "volumeMounts": mount} for name in containers]
        return {"spec": {"containers": entries, "volumes": [{"name": "files", "hostPath": {"path": str(file.parent)}}]}}

    benchmarks = spec.get("evaluation", {}).get("benchmarks", [])
    for source in [*spec["data"]["prompts"], *benchmarks]:
        source["jsonl"]["uri"] = f"/quickstart/{source['jsonl']['uri']}"
    if "source" in spec["workflow"]:
        spec["workflow"]["source"]["path"] = "/quickstart"
    spec["data"]["template"] = template("dataflow")
    policy = spec["policies"][0]
    policy["model"]["uri"] = "/quickstart/model"
    policy["trainer"]["template"] = template("trainer")
    spec["pools"][0]["template"] = template("worker", "engine")
    return job


def job_status(scene: Scene, name: str) -> dict[str, Any]:
    return dict((scene.get(RLJOBS, name) or {}).get("status") or {})
