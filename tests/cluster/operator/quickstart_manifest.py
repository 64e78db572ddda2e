"""The quickstart as a job in a cluster: its files on a volume, and threads that leave room for others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from tests.cluster.operator.scene import Scene
from trimtab.kube.resources import RLJOBS


def in_a_cluster(file: Path) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(file.read_text())
    spec = job["spec"]
    few_threads = [{"name": "OMP_NUM_THREADS", "value": "1"}, {"name": "TOKENIZERS_PARALLELISM", "value": "false"}]
    mount = [{"name": "files", "mountPath": "/quickstart", "readOnly": True}]

    def template(*containers: str) -> dict[str, Any]:
        entries = [{"name": name, "env": few_threads, "volumeMounts": mount} for name in containers]
        return {"spec": {"containers": entries, "volumes": [{"name": "files", "hostPath": {"path": str(file.parent)}}]}}

    spec["data"]["batchSize"] = 32
    spec["data"]["prompts"] = [{"name": "train", "jsonl": {"uri": "/quickstart/prompts.jsonl"}}]
    spec["data"]["template"] = template("dataflow")
    policy = spec["policies"][0]
    policy["model"]["uri"] = "/quickstart/model"
    policy["trainer"] |= {"checkpoint": {"everySteps": 2}, "template": template("trainer")}
    spec["pools"][0] |= {"gracePeriodSeconds": 10, "template": template("worker", "engine")}
    return job


def job_status(scene: Scene, name: str) -> dict[str, Any]:
    return dict((scene.get(RLJOBS, name) or {}).get("status") or {})
