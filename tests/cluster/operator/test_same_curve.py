"""The quickstart as it is shipped for a cluster, through kubectl, and the one for a machine through `trimtab run`: the
same learning curve.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from examples.quickstart.cluster import FILE as CLUSTER
from examples.streams import batches_of, rewards_of, streams_on
from tests.support.operator.administrator import administrators_bus
from tests.support.operator.quickstart_manifest import job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.cli.chronicle.file import read
from trimtab.cli.chronicle.story import told
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.fabric.bus.topology import JobTopology
from trimtab.kube.resources import RLJOBS

pytestmark = pytest.mark.slow

_STEPS = 30
_PART = 10
_RUN_S = 700.0
# Runs of one seed differ in which sample meets which version, and by the speed of the machine in how stale samples are.
_BAND = 0.15


def test_kubectl_and_trimtab_run_give_the_same_learning_curve(
    scene: Scene, node: DevelopmentNode, servers: dict[str, str], tmp_path: Path
) -> None:
    code, job = yaml.safe_load_all(CLUSTER.read_text())
    job["metadata"]["name"] = "curve"
    job["spec"]["maxSteps"] = _STEPS
    del job["spec"]["targetReward"]
    scene.apply(code, job)
    scene.says(RLJOBS, "curve", "Succeeded", "PoliciesTrained", timeout_s=_RUN_S)
    in_cluster = asyncio.run(_rewards(servers, scene))
    (evaluated,) = job_status(scene, "curve")["policies"][0]["evaluation"]
    scene.kubectl("delete", "rljob", "curve", "--wait=true", "--timeout=300s")

    at_home = _run_here(make_quickstart(tmp_path, name="curve", max_steps=_STEPS, whole=True))
    assert len(in_cluster) == len(at_home) == _STEPS
    assert _parts(in_cluster) == pytest.approx(_parts(at_home), abs=_BAND)
    # Both have learned: neither is flat.
    assert min(_parts(in_cluster)[-1], _parts(at_home)[-1]) > 2 * max(_parts(in_cluster)[0], _parts(at_home)[0])
    assert evaluated["benchmark"] == "held-out"
    assert evaluated["score"] > 0.4


def _parts(rewards: list[float]) -> list[float]:
    return [round(fmean(rewards[first : first + _PART]), 3) for first in range(0, len(rewards), _PART)]


async def _rewards(servers: dict[str, str], scene: Scene) -> list[float]:
    uid = scene.must_get(RLJOBS, "curve")["metadata"]["uid"]
    async with await administrators_bus(servers, job_uid=uid) as bus:
        return rewards_of(batches_of(await streams_on(bus, JobTopology(scene.namespace, "curve"))))


def _run_here(file: Path) -> list[float]:
    arguments = [sys.executable, "-m", "trimtab.cli.main", "run", str(file)]
    completed = subprocess.run(arguments, capture_output=True, text=True, timeout=_RUN_S)
    assert completed.returncode == 0, completed.stderr
    story = told(read(file.parent / ".trimtab" / "curve"))
    return [step.reward for step in story.policies["solver"].steps]
