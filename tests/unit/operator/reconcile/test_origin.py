"""What a job's own Secret says of where it begins, which people of its namespace may have written."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from trimtab.fabric.settings import ObjectStoreSettings, ResumeSettings
from trimtab.fabric.tls import ClientTls
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.operator.reconcile.origin import origin_of, origin_prefix
from trimtab.operator.reconcile.ownership import Objected

STORE = ObjectStoreSettings(bucket="all", prefix="jobs")
OWN = "s3://all/jobs/team/earlier-12345678/checkpoints"


def job(name: str, source: str = "earlier") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", "uid": "u"},
        "spec": {"resumeFrom": {"job": source}, "policies": [{"name": "solver"}]},
    }


def secret(place: str) -> dict[str, Any]:
    said = {"place": place, "job": "team/earlier", "public_key": "key"}
    return {"data": {f"resume__{name}": base64.b64encode(text.encode()).decode() for name, text in said.items()}}


async def found(kept: str) -> ResumeSettings | None:
    """Of a job that names itself: nothing is looked up, so only what is kept can be an answer."""
    client = KubeClient(ClusterAccess(server="https://127.0.0.1:1", tls=ClientTls()), user_agent="test")
    return await origin_of(client, job("earlier"), secret(kept), object_store=STORE, key_root=None)


async def test_what_was_looked_up_once_is_kept() -> None:
    kept = await found(OWN)
    assert kept is not None
    assert kept.place == OWN
    assert origin_prefix(kept, STORE) == "jobs/team/earlier-12345678/checkpoints"


@pytest.mark.parametrize(
    "place",
    [
        "s3://all/jobs/other/earlier-12345678/checkpoints",
        "s3://all/jobs/team/../other/earlier-12345678/checkpoints",
        "s3://all/jobs/team/*/checkpoints",
        "s3://all/jobs/team/earlier-12345678/weights",
        "s3://all/jobs/team/earlier-12345678/checkpoints/..",
        "s3://another/jobs/team/earlier-12345678/checkpoints",
        "s3://all/jobs/team/checkpoints",
        "",
    ],
)
async def test_what_is_not_of_its_namespace_is_looked_up_anew(place: str) -> None:
    with pytest.raises(Objected, match="is this job itself"):
        await found(place)


async def test_a_job_that_begins_at_its_models_has_no_origin() -> None:
    client = KubeClient(ClusterAccess(server="https://127.0.0.1:1", tls=ClientTls()), user_agent="test")
    plain = job("plain")
    del plain["spec"]["resumeFrom"]
    assert await origin_of(client, plain, secret(OWN), object_store=STORE, key_root=None) is None
    assert origin_prefix(None, STORE) is None
