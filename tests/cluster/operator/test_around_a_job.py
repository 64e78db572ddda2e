"""What people have around a job, on the development node: its model from a hub, its curves in a tracker, commands that
say what its pods do, and a setting that is changed while it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli.tracker_environment import trackers_packages
from tests.support.hub_mirror import HubMirror, hub_mirror
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.kube.resources import RLJOBS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
_JOB, _MODEL = "around", "models/team/quick"
_S = 400.0


def _job(folder: Path, mirror: HubMirror) -> dict[str, Any]:
    """Pods share what they fetch, as those of a node would; the pod of trackers has their libraries."""
    job = in_a_cluster(make_quickstart(folder / "quickstart", name=_JOB, max_steps=1_000_000))
    mirror.repositories[_MODEL] = folder / "quickstart" / "model"
    spec = job["spec"]
    policy, pool = spec["policies"][0], spec["pools"][0]
    policy["model"]["uri"] = "hf://team/quick@v1"
    spec["hub"] = {"endpoint": mirror.url}
    for name in ("sources", "curves", "site"):
        (folder / name).mkdir()
    for template in (policy["trainer"]["template"], pool["template"]):
        template["spec"]["volumes"].append({"name": "sources", "hostPath": {"path": str(folder / "sources")}})
    (folder / "site" / "sitecustomize.py").write_text(f"import sys\nsys.path.append({str(trackers_packages())!r})\n")
    spec["tracking"] = [{"type": "tensorboard", "folder": "/curves"}]
    places = {"curves": folder / "curves", "site": folder / "site", "packages": trackers_packages()}
    mounts = {"curves": "/curves", "site": "/site", "packages": str(trackers_packages())}
    spec["trackingTemplate"] = {
        "spec": {
            "containers": [
                {
                    "name": "tracking",
                    "env": [{"name": "PYTHONPATH", "value": "/site"}],
                    "volumeMounts": [{"name": name, "mountPath": path} for name, path in mounts.items()],
                }
            ],
            "volumes": [{"name": name, "hostPath": {"path": str(path)}} for name, path in places.items()],
        }
    }
    return job


def test_what_people_have_around_a_job(
    scene: Scene, node: DevelopmentNode, servers: dict[str, str], tmp_path: Path
) -> None:
    with hub_mirror() as mirror:
        scene.apply(_job(tmp_path, mirror))
        status = scene.until(
            lambda: job_status(scene, _JOB),
            lambda seen: seen.get("step", 0) >= 3 or "completionTime" in seen,
            timeout_s=_S,
        )
        assert "completionTime" not in status, status
        assert mirror.sent["model.safetensors"] == 1, "trainer, worker and engine share a node's copy"

    told = _command(scene, servers, "top", _JOB, "--once", "--json")
    assert {"dataflow", "trainer", "rollout"} <= set(json.dumps(told).replace('"', " ").split()), told
    slow = _command(scene, servers, "why-slow", _JOB, "--json")
    assert slow["steps"][0]["policy"] == "solver", slow
    assert slow["steps"][0]["seconds"] > 0

    rate = [{"op": "add", "path": "/spec/policies/0/algorithm/optimizer/learningRate", "value": 0.0005}]
    scene.kubectl("patch", "rljob", _JOB, "--type=json", "-p", json.dumps(rate))
    scene.until(lambda: scene.reasons(_JOB), lambda reasons: "SettingsChanged" in reasons)
    reached = job_status(scene, _JOB)["step"]
    scene.until(lambda: job_status(scene, _JOB)["step"], lambda step: step > reached + 2, timeout_s=_S)

    scene.kubectl("patch", "rljob", _JOB, "--type=merge", "-p", json.dumps({"spec": {"maxSteps": reached + 6}}))
    scene.says(RLJOBS, _JOB, "Succeeded", "PoliciesTrained", timeout_s=_S)
    # It goes last, when its trackers have been told the rest.
    scene.until(lambda: scene.pods("tracking"), lambda pods: not pods, timeout_s=_S)
    steps = _curve(tmp_path / "curves", "solver/reward")
    assert steps == list(range(job_status(scene, _JOB)["step"])), "each step once, the last one too"
    assert _curve(tmp_path / "curves", "fleet/local/wanted"), "what only the operator knows"


def _command(scene: Scene, servers: dict[str, str], *arguments: str) -> Any:
    """As a person calls it who has the operator's key."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TRIMTAB_")}
    environment |= {name: value for name, value in servers.items() if name.startswith("TRIMTAB_NATS")}
    completed = subprocess.run(
        [sys.executable, "-m", "trimtab.cli.main", *arguments, "--namespace", scene.namespace],
        env=environment | {"KUBECONFIG": str(scene.plane.kubeconfig())},
        capture_output=True,
        text=True,
        timeout=_S,
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def _curve(folder: Path, name: str) -> list[int]:
    """Steps that TensorBoard has of it."""
    program = (
        "import json, pathlib, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "(run,) = {file.parent for file in pathlib.Path(sys.argv[1]).rglob('*tfevents*')}\n"
        "found = EventAccumulator(str(run), size_guidance={'tensors': 0, 'scalars': 0})\n"
        "found.Reload()\n"
        "told = found.Tensors if sys.argv[2] in found.Tags()['tensors'] else found.Scalars\n"
        "print(json.dumps([one.step for one in told(sys.argv[2])]))\n"
    )
    environment = os.environ | {"PYTHONPATH": str(trackers_packages())}
    said = subprocess.run(
        [sys.executable, "-c", program, str(folder), name],
        env=environment, capture_output=True, text=True, timeout=_S, check=True,
    )  # fmt: skip
    found: list[int] = json.loads(said.stdout)
    return found
