"""What a job's own Secret says of where it begins, which people of its namespace may have written."""

from __future__ import annotations

import base64
from collections.abc import Collection
from typing import Any

import pytest

from trimtab.fabric.settings import ObjectStoreSettings, ResumeSettings
from trimtab.fabric.tls import ClientTls
from trimtab.fabric.wire.evaluation import EvaluationResult
from trimtab.kube.access import ClusterAccess
from trimtab.kube.client import KubeClient
from trimtab.operator.reconcile.job_buses import JobIdentity
from trimtab.operator.reconcile.origin import is_needed, origin_of, origin_prefix
from trimtab.operator.reconcile.ownership import Objected

STORE = ObjectStoreSettings(bucket="all", prefix="jobs")
OWN = "s3://all/jobs/team/earlier-12345678/checkpoints"


def job(name: str, source: str = "earlier") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team", "uid": "u"},
        "spec": {"resumeFrom": {"job": source}, "policies": [{"name": "solver"}]},
    }


def secret(place: str, **more: str) -> dict[str, Any]:
    said = {"place": place, "job": "team/earlier", "public_key": "key", **more}
    return {"data": {f"resume__{name}": base64.b64encode(text.encode()).decode() for name, text in said.items()}}


async def unread(job: JobIdentity, policies: Collection[str]) -> list[EvaluationResult]:
    raise AssertionError(f"scores of {job.key.name} were read")


async def asked(item: dict[str, Any], kept: dict[str, Any]) -> ResumeSettings | None:
    client = KubeClient(ClusterAccess(server="https://127.0.0.1:1", tls=ClientTls()), user_agent="test")
    return await origin_of(client, item, kept, object_store=STORE, key_root=None, results=unread)


async def found(kept: str) -> ResumeSettings | None:
    """Of a job that names itself: nothing is looked up, so only what is kept can be an answer."""
    return await asked(job("earlier"), secret(kept))


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


def best() -> dict[str, Any]:
    """One that names itself, as above."""
    wanted = job("earlier")
    wanted["spec"]["resumeFrom"]["step"] = "Best"
    return wanted


async def test_which_steps_did_best_is_looked_up_once() -> None:
    kept = await asked(best(), secret(OWN, steps="solver=8/2/4"))
    assert kept is not None
    assert kept.steps_of("solver") == (8, 2, 4)


@pytest.mark.parametrize("steps", ["", "critic=8", "solver=", "solver=8/", "solver=eight", "8"])
async def test_what_does_not_say_it_is_looked_up_anew(steps: str) -> None:
    with pytest.raises(Objected, match="is this job itself"):
        await asked(best(), secret(OWN, steps=steps))


async def test_a_job_that_has_made_a_step_needs_the_other_one_no_more() -> None:
    begun = job("earlier") | {"status": {"step": 1}}
    assert not is_needed(begun)
    assert is_needed(job("earlier") | {"status": {"step": 0}})
    assert await asked(begun, {}) is None


async def test_a_job_that_begins_at_its_models_has_no_origin() -> None:
    plain = job("plain")
    del plain["spec"]["resumeFrom"]
    assert await asked(plain, secret(OWN)) is None
    assert origin_prefix(None, STORE) is None
