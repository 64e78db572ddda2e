"""A job that begins at another's checkpoint: looked up once in its own namespace, told where it cannot be, and run."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene, tiny_job
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.fabric.signing import Signer
from trimtab.kube.resources import PODS, RLJOBS, SECRETS

SECRET, SOURCE = "tiny-credentials", "source-credentials"
PODS_OF_TINY = ("tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0")


def resumed(**resume: Any) -> dict[str, Any]:
    return tiny_job(resumeFrom={"job": "source", **resume})


def in_secret(scene: Scene, name: str = SECRET) -> dict[str, str]:
    scene.until(lambda: scene.get(SECRETS, name), bool)
    return {key: base64.b64decode(value).decode() for key, value in scene.must_get(SECRETS, name)["data"].items()}


def place_of(scene: Scene) -> str:
    uid = scene.must_get(RLJOBS, "source")["metadata"]["uid"]
    return f"s3://trimtab/{scene.namespace}/source-{uid[:8]}/checkpoints"


def shown(scene: Scene, pod: str) -> set[str]:
    """Files of the Secret that the pod sees."""
    volumes = scene.must_get(PODS, pod)["spec"]["volumes"]
    items = [item for volume in volumes for item in (volume.get("secret") or {}).get("items") or ()]
    sources = [source for volume in volumes for source in (volume.get("projected") or {}).get("sources") or ()]
    items += [item for source in sources for item in (source.get("secret") or {}).get("items") or ()]
    return {str(item["path"]) for item in items}


@pytest.mark.slow
def test_where_it_begins_is_looked_up_once_and_in_its_own_namespace(scene: Scene) -> None:
    far = f"far-{uuid.uuid4().hex[:8]}"
    scene.plane.kubectl("create", "namespace", far)
    scene.plane.kubectl("-n", far, "apply", "-f", "-", stdin=json.dumps(tiny_job("source")))
    scene.apply(resumed(step=4))
    message = scene.says(RLJOBS, "tiny", "Accepted", "ResumeSourceRefused")
    assert f"spec.resumeFrom.job: there is no job source in namespace {scene.namespace}" in message
    assert scene.pods() == {}

    scene.apply(tiny_job("source"))
    scene.until(lambda: set(PODS_OF_TINY) <= set(scene.pods()), bool)
    scene.until(lambda: scene.condition(RLJOBS, "tiny", "Accepted").get("status"), lambda status: status == "True")
    found, place = in_secret(scene), place_of(scene)
    assert found["resume__place"] == place
    assert found["resume__job"] == f"{scene.namespace}/source"
    assert found["resume__public_key"] == Signer(in_secret(scene, SOURCE)["weights__signing_seed"]).public_text
    assert "resume__place" in shown(scene, PODS_OF_TINY[1])
    assert not any(file.startswith("resume__") for file in shown(scene, PODS_OF_TINY[2]))

    # Neither its end changes anything, nor does who writes into the Secret.
    scene.kubectl("delete", "rljob", "source", "--wait=true", "--timeout=300s")
    elsewhere = base64.b64encode(f"s3://trimtab/{far}/source-00000000/checkpoints".encode()).decode()
    scene.kubectl("patch", "secret", SECRET, "-p", json.dumps({"data": {"resume__place": elsewhere}}))
    scene.kubectl("scale", "rolloutpool", "tiny-home", "--replicas=2")
    scene.until(lambda: "tiny-home-rollout-1" in scene.pods(), bool)
    assert in_secret(scene)["resume__place"] == place
    scene.plane.kubectl("delete", "namespace", far, "--wait=false")


def test_a_job_that_names_itself_is_refused_by_its_field(scene: Scene) -> None:
    scene.apply(resumed(job="tiny"))
    message = scene.says(RLJOBS, "tiny", "Accepted", "ResumeSourceRefused")
    assert "spec.resumeFrom.job: tiny is this job itself" in message


@pytest.mark.slow
def test_a_job_trains_on_from_where_another_ended(scene: Scene, node: DevelopmentNode, tmp_path: Path) -> None:
    """With credentials of the store that reach the other job's checkpoints and nothing else of it."""
    file = make_quickstart(tmp_path, name="source", max_steps=2)
    source = in_a_cluster(file)
    scene.apply(source)
    scene.says(RLJOBS, "source", "Succeeded", "PoliciesTrained")
    wrong = {
        **source,
        "metadata": {"name": "wrong"},
        "spec": {**source["spec"], "resumeFrom": {"job": "source", "step": 1}},
    }
    tiny = {**source, "metadata": {"name": "tiny"}, "spec": {**source["spec"], "resumeFrom": {"job": "source"}}}
    scene.apply(tiny)
    scene.says(RLJOBS, "tiny", "Succeeded", "PoliciesTrained")
    assert job_status(scene, "tiny")["step"] == 2
    assert '"event": "begun_elsewhere"' in scene.kubectl("logs", "tiny-solver-trainer-0", "-c", "trainer")
    scene.apply(wrong)
    failed = scene.until(
        lambda: scene.condition(RLJOBS, "wrong", "Succeeded"), lambda condition: condition.get("status") == "False"
    )
    assert "spec.resumeFrom" in failed["message"]
    assert "there is no checkpoint of step 1; there are those of 2" in failed["message"]
