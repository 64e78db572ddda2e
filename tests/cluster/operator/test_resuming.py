"""A job that begins at another's checkpoint: looked up once in its own namespace, told where it cannot be, and run; and
what it was given for that is taken back.
"""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from tests.support.operator.administrator import administrators_bus
from tests.support.operator.quickstart_manifest import in_a_cluster, job_status
from tests.support.operator.scene import Scene, tiny_job
from tests.support.quickstart_job import make_quickstart
from trimtab.devcluster.node.server import DevelopmentNode
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreUnauthorized
from trimtab.fabric.settings import ObjectStoreSettings
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.evaluation import EvaluationResult
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


class _Checkpoint:
    """An object where the other job's checkpoints are."""

    def __init__(self, scene: Scene, servers: Mapping[str, str], folder: Path) -> None:
        store = ObjectStoreSettings(
            bucket="trimtab", endpoint_url=servers["TRIMTAB_OBJECT_STORE__ENDPOINT_URL"], prefix=""
        )
        self._scene, self._folder = scene, folder
        self._key = place_of(scene).removeprefix("s3://trimtab/") + "/solver/latest.json"
        self._pods = store
        self._own = store.model_copy(
            update={
                name: SecretStr(servers[f"TRIMTAB_OBJECT_STORE__{name.upper()}"])
                for name in ("access_key_id", "secret_access_key")
            }
        )

    def write(self) -> None:
        asyncio.run(self._put())

    def is_read_by_the_trainer(self) -> bool:
        """With the credentials that the resumed job's Secret has for it now."""
        keys = self._folder / "keys"
        keys.write_text(in_secret(self._scene)["object-store-credentials-trainer"])
        return asyncio.run(self._gets(self._pods.model_copy(update={"credentials_file": keys})))

    async def _put(self) -> None:
        async with ObjectStore(self._own) as store:
            await store.put(self._key, b"checkpoint")

    async def _gets(self, settings: ObjectStoreSettings) -> bool:
        async with ObjectStore(settings) as store:
            try:
                return (await store.get(self._key, max_bytes=100)).body == b"checkpoint"
            except StoreUnauthorized:
                return False


async def scored(scene: Scene, servers: Mapping[str, str], scores: Mapping[int, float]) -> None:
    """As the dataflow of the other job tells them."""
    topology = JobTopology(scene.namespace, "source")
    async with await administrators_bus(servers, job_uid=scene.must_get(RLJOBS, "source")["metadata"]["uid"]) as bus:
        await declare_job(bus, topology, deadline_s=60.0)
        for version, score in scores.items():
            result = EvaluationResult(
                job="source", policy="solver", benchmark="b", version=version, score=score, episodes=1, at=1.0
            )
            key = JobTopology.evaluation_key("solver", "b", version=version)
            await KeyValue(bus, topology.balance).put(key, encode(result), deadline_s=60.0)


def test_the_best_is_looked_up_once_by_the_scores_of_the_other_job(scene: Scene, servers: dict[str, str]) -> None:
    scene.apply(tiny_job("source"))
    scene.until(lambda: set(scene.pods()) >= {"source-dataflow-0"}, bool)
    scene.apply(resumed(step="Best"))
    message = scene.says(RLJOBS, "tiny", "Accepted", "ResumeSourceRefused")
    assert "spec.resumeFrom.step: no version of solver was evaluated" in message
    assert scene.pods("tiny") == {}

    asyncio.run(scored(scene, servers, {4: 0.75}))
    scene.until(lambda: set(PODS_OF_TINY) <= set(scene.pods()), bool)
    assert in_secret(scene)["resume__steps"] == "solver=4"
    assert "resume__steps" in shown(scene, PODS_OF_TINY[1])
    asyncio.run(scored(scene, servers, {2: 0.5, 6: 0.5, 8: 1.0}))
    # Who deletes the Secret has it made again, with what it had.
    scene.kubectl("delete", "secret", SECRET)
    scene.kubectl("delete", "pod", PODS_OF_TINY[2], "--grace-period=0", "--force")
    scene.until(lambda: scene.get(SECRETS, SECRET), bool)
    assert in_secret(scene)["resume__steps"] == "solver=4"
    scene.apply(tiny_job("later", resumeFrom={"job": "source", "step": "Best"}))
    assert in_secret(scene, "later-credentials")["resume__steps"] == "solver=8/4/6/2", "by score, the later one first"


def test_the_right_to_read_the_other_checkpoints_ends_with_the_first_step(
    scene: Scene, servers: dict[str, str], tmp_path: Path
) -> None:
    scene.apply(tiny_job("source"))
    scene.until(lambda: set(scene.pods()) >= {"source-dataflow-0"}, bool)
    scene.apply(resumed(step=4))
    scene.until(lambda: set(PODS_OF_TINY) <= set(scene.pods()), bool)
    checkpoint = _Checkpoint(scene, servers, tmp_path)
    checkpoint.write()
    assert checkpoint.is_read_by_the_trainer()
    progress = {"status": {"step": 1, "policies": [{"name": "solver", "step": 1}]}}
    scene.kubectl("patch", "rljob", "tiny", "--subresource=status", "--type=merge", "-p", json.dumps(progress))
    scene.until(checkpoint.is_read_by_the_trainer, lambda is_read: not is_read)


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
    file = make_quickstart(tmp_path, name="source", max_steps=4)
    source = in_a_cluster(file)
    held_out = {"name": "held-out", "jsonl": {"uri": "/quickstart/held_out.jsonl"}, "limit": 8}
    source["spec"]["evaluation"] = {"everySteps": 2, "benchmarks": [held_out | {"sampling": {"maxTokens": 1}}]}
    scene.apply(source)
    scene.says(RLJOBS, "source", "Succeeded", "PoliciesTrained")
    earlier = {"job": "source"}
    spec = {name: value for name, value in source["spec"].items() if name != "evaluation"} | {"maxSteps": 2}
    wrong = {**source, "metadata": {"name": "wrong"}, "spec": {**spec, "resumeFrom": {**earlier, "step": 1}}}
    tiny = {**source, "metadata": {"name": "tiny"}, "spec": {**spec, "resumeFrom": earlier}}
    scene.apply(tiny)
    scene.says(RLJOBS, "tiny", "Succeeded", "PoliciesTrained")
    assert job_status(scene, "tiny")["step"] == 2
    assert begun_at(scene, "tiny") == 4
    best = {**tiny, "metadata": {"name": "best"}, "spec": {**tiny["spec"], "resumeFrom": {**earlier, "step": "Best"}}}
    scene.apply(best)
    scene.says(RLJOBS, "best", "Succeeded", "PoliciesTrained")
    _, _, steps = in_secret(scene, "best-credentials")["resume__steps"].partition("=")
    # Of the model that it began with there is a score and no checkpoint.
    assert set(steps.split("/")) == {"0", "2", "4"}
    assert begun_at(scene, "best") == next(int(step) for step in steps.split("/") if step != "0")
    scene.apply(wrong)
    failed = scene.until(
        lambda: scene.condition(RLJOBS, "wrong", "Succeeded"), lambda condition: condition.get("status") == "False"
    )
    assert "spec.resumeFrom" in failed["message"]
    assert "there is no checkpoint of step 1; there are those of 4, 2" in failed["message"]
    # With the job goes what it had of the other one, which keeps its own.
    scene.kubectl("delete", "rljob", "tiny", "--wait=true", "--timeout=300s")
    scene.until(lambda: scene.get(SECRETS, SECRET), lambda secret: secret is None)
    assert "weights__signing_seed" in in_secret(scene, SOURCE)


def begun_at(scene: Scene, job: str) -> int:
    """The step of the other job's checkpoint, as its trainer logs it."""
    log = scene.kubectl("logs", f"{job}-solver-trainer-0", "-c", "trainer").splitlines()
    lines = [json.loads(line) for line in log if '"event": "begun_elsewhere"' in line]
    (step,) = {int(line["step"]) for line in lines}
    return step
