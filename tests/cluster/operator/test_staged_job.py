"""A job with stages on the development node: a pool that runs no episodes serves them, and its columns are trained."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from tests.support.rollout import staged_code
from tests.support.staged_job import check_columns, with_stages
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.kube.resources import RLJOBS

pytestmark = pytest.mark.slow

_STEPS = 2
_BATCH = 32
_JOB_S = 400.0


def test_columns_arrive_at_the_trainer_from_a_pool_of_their_own(
    scene: Scene, node: DevelopmentNode, tmp_path: Path
) -> None:
    shutil.copy(staged_code.__file__, tmp_path / "own_code.py")
    told = tmp_path / "told"
    told.mkdir(mode=0o777)
    job = in_a_cluster(make_quickstart(tmp_path, name="staged", max_steps=_STEPS, batchSize=_BATCH))
    with_stages(job, code="/quickstart", seen="/told/seen.jsonl")
    trainer = job["spec"]["policies"][0]["trainer"]["template"]["spec"]
    (container,) = trainer["containers"]
    container["volumeMounts"] = [*container["volumeMounts"], {"name": "told", "mountPath": "/told"}]
    trainer["volumes"].append({"name": "told", "hostPath": {"path": str(told)}})
    scene.apply(job)
    scene.says(RLJOBS, "staged", "Succeeded", "PoliciesTrained", timeout_s=_JOB_S)
    assert job_status(scene, "staged")["step"] >= _STEPS
    check_columns(
        [json.loads(line) for line in (told / "seen.jsonl").read_text().splitlines()], steps=_STEPS, batch=_BATCH
    )
