"""A job that has trained in a cluster and was deleted there goes on from its backup, and trains nothing twice."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.operator.administrator import administrators_bus
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene
from tests.support.quickstart_job import make_quickstart
from trimtab.api.job import RLJob
from trimtab.api.validation import parse
from trimtab.cli.main import main
from trimtab.dataflow.audit.report import AuditReport, audit
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.fabric.bus.topology import JobTopology
from trimtab.kube.resources import RLJOBS, SECRETS


@pytest.mark.slow
def test_a_deleted_job_goes_on_from_its_backup(
    scene: Scene, node: DevelopmentNode, servers: dict[str, str], tmp_path: Path
) -> None:
    manifest = in_a_cluster(make_quickstart(tmp_path / "files", name="kept", max_steps=3))
    scene.apply(manifest)
    scene.says(RLJOBS, "kept", "Succeeded", "PoliciesTrained")
    uid = scene.must_get(RLJOBS, "kept")["metadata"]["uid"]
    environment = {**servers, "KUBECONFIG": str(scene.plane.kubeconfig())}
    prefix = {"TRIMTAB_OBJECT_STORE__PREFIX": f"{scene.namespace}/kept-{uid[:8]}"}
    backup = str(tmp_path / "backup")
    taking = ["backup", "kept", backup, "--namespace", scene.namespace, "--plain-keys"]
    said = CliRunner().invoke(main, taking, env=environment | prefix)
    assert said.exit_code == 0, said.output

    scene.kubectl("delete", "rljob", "kept", "--wait=true", "--timeout=300s")
    scene.until(lambda: scene.get(SECRETS, "kept-credentials"), lambda secret: secret is None)
    said = CliRunner().invoke(main, ["restore", backup, "--cluster"], env=environment)
    assert said.exit_code == 0, said.output
    assert "kept of namespace" in said.output
    scene.kubectl("patch", "rljob", "kept", "--type=merge", "-p", json.dumps({"spec": {"maxSteps": 5}}))
    scene.until(lambda: job_status(scene, "kept").get("step"), lambda step: step == 5)
    scene.says(RLJOBS, "kept", "Succeeded", "PoliciesTrained")
    job = scene.must_get(RLJOBS, "kept")
    assert job["metadata"]["uid"] != uid
    typed = parse({**manifest, "metadata": {"name": "kept", "namespace": scene.namespace}})
    assert isinstance(typed, RLJob)
    report = asyncio.run(audited(servers, typed, uid=job["metadata"]["uid"]))
    assert report.violations == []
    assert report.steps == {"solver": 5}
    assert report.trained == {"solver": 5 * 32}


async def audited(servers: dict[str, str], job: RLJob, *, uid: str) -> AuditReport:
    topology = JobTopology(job.metadata.namespace or "", job.metadata.name)
    async with await administrators_bus(servers, job_uid=uid) as bus:
        return await audit(bus, topology, data=job.spec.data)
