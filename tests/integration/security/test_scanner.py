"""checkov over all that is shipped: what the chart renders, pods that the operator makes, and the Dockerfile. Its open
edition gives no severities, so every finding counts: it is mended, or exceptions.yaml says why not.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from images.environment import ROOT
from tests.support.chart.rendering import SETS, objects, values_of
from tests.support.dataflow.jobs import job
from tests.support.operator.objects import rollout_pod
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.operator.plan.children import pool_of, trainer_of
from trimtab.operator.plan.job_pods import dataflow_pods, trainer_pods
from trimtab.operator.pods.network import job_policy
from trimtab.operator.pods.rendering import PodSite, render_pod
from trimtab.operator.settings import JobNetworkSettings

pytestmark = pytest.mark.slow

_CHECKOV = "checkov==3.3.30"
_EXCEPTIONS = yaml.safe_load((Path(__file__).parent / "exceptions.yaml").read_text(encoding="utf-8"))

Finding = tuple[str, str]
"""A check and what it is about."""


def _shipped(folder: Path) -> None:
    for name in SETS:
        entries = [entry for entry in objects(values_of(name)) if entry["kind"] != "CustomResourceDefinition"]
        (folder / f"{name}.yaml").write_text(yaml.safe_dump_all(entries), encoding="utf-8")
    (folder / "job.yaml").write_text(yaml.safe_dump_all(_objects_of_a_job()), encoding="utf-8")
    (folder / "images").mkdir()
    shutil.copy(ROOT / "images/Dockerfile", folder / "images")


def _objects_of_a_job() -> list[dict[str, Any]]:
    desired = job()
    pool, trainer = pool_of(desired, desired.spec.pools[0], None), trainer_of(desired, desired.spec.policies[0])
    plans = [*dataflow_pods(desired), rollout_pod(desired, pool, 0), *trainer_pods(desired, trainer, attempt=1)]
    metadata = {"name": desired.metadata.name, "namespace": "trimtab-system", "uid": "1"}
    site = PodSite(
        owner={"kind": "RLJob", "metadata": metadata},
        job=desired.metadata.name,
        image="ghcr.io/trimtab/rollout:0.1.0",
        environment={"TRIMTAB_NATS__SERVERS": "tls://nats:4222"},
        secret="job-credentials",
        secret_files={"nats-credentials": "nats-credentials-rollout"},
        manifest="job-manifest",
    )
    policy = job_policy(
        {"kind": "RLJob", "metadata": metadata},
        desired,
        settings=JobNetworkSettings(),
        nats=NatsSettings(servers=("tls://nats:4222",)),
        object_store=ObjectStoreSettings(bucket="b", region="r", endpoint_url="https://store:8333"),
    )
    return [*(render_pod(plan, site) for plan in plans), policy]


def _scan(folder: Path) -> list[dict[str, Any]]:
    # In an environment of its own: it pins what we use in other versions.
    uv = Path(sysconfig.get_path("scripts")) / "uv"
    scanned = subprocess.run(
        [str(uv), "tool", "run", "--from", _CHECKOV, "checkov", "--directory", str(folder), "--skip-download",
         "--framework", "kubernetes", "dockerfile", "--output", "json", "--compact", "--quiet", "--soft-fail"],
        cwd=folder, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert scanned.returncode == 0, scanned.stderr[-4000:]
    reports: list[dict[str, Any]] = json.loads(scanned.stdout)
    return reports


def _found(reports: list[dict[str, Any]]) -> set[Finding]:
    return {
        (check["check_id"], _subject(check["resource"]))
        for report in reports
        for check in report["results"]["failed_checks"]
    }


def _subject(resource: str) -> str:
    """Deployment.trimtab-system.trimtab-operator as kubectl would name it."""
    kind, _, name = resource.partition(".trimtab-system.")
    return f"{kind}/{name}" if name else resource


def test_no_finding_without_a_written_reason(tmp_path: Path) -> None:
    _shipped(tmp_path)
    reports = _scan(tmp_path)
    looked_at = {report["check_type"]: report["summary"] for report in reports}
    assert looked_at["kubernetes"]["passed"] > 1000
    assert looked_at["dockerfile"]["passed"] > 50
    assert all(summary["parsing_errors"] == 0 for summary in looked_at.values())
    assert all(entry["reason"] for entry in _EXCEPTIONS)
    assert _found(reports) == {(entry["check"], subject) for entry in _EXCEPTIONS for subject in entry["of"]}


def test_the_scanner_finds_what_is_wrong(tmp_path: Path) -> None:
    """A privileged operator, run by root, is found."""
    (operator,) = [entry for entry in objects({}) if entry["kind"] == "Deployment"]
    (container,) = operator["spec"]["template"]["spec"]["containers"]
    container["securityContext"] = {"privileged": True, "runAsUser": 0}
    (tmp_path / "operator.yaml").write_text(yaml.safe_dump(operator), encoding="utf-8")
    shutil.copy(ROOT / "images/Dockerfile", tmp_path)
    found = {check for check, _ in _found(_scan(tmp_path))}
    assert {"CKV_K8S_16", "CKV_K8S_20", "CKV_K8S_22"} <= found
