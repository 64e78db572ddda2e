"""A job's Secret that was deleted: made again with the same keys where they follow from the operator's root, and else
the job is refused, because its own pods would refuse what was signed with the lost ones."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.operator.namespaced_operators import namespaced_operators
from tests.support.operator.scene import Scene, tiny_job
from tests.support.template_process import TemplateProcess
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access
from trimtab.kube.resources import RLJOBS, SECRETS

DATAFLOW, TRAINER = "tiny-dataflow-0", "tiny-solver-trainer-0"
WORKER, SECOND = "tiny-home-rollout-0", "tiny-home-rollout-1"
SECRET = "tiny-credentials"
KEYS = ("weights__signing_seed", "ledger__key")


@pytest.fixture(scope="module")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """One of our own: the operator of the other tests would do the work of ours."""
    with new_control_plane() as plane:
        yield plane


@pytest.fixture
def start(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    namespace: str,
    tmp_path: Path,
) -> Iterator[Callable[..., Scene]]:
    access, numbers = load_access(control_plane.kubeconfig()), count()
    with namespaced_operators(
        operator_template, control_plane, namespace=namespace, folder=tmp_path, environment=servers
    ) as operator:

        def begin(**environment: str) -> Scene:
            process = operator(str(next(numbers)), **environment)
            return Scene(plane=control_plane, namespace=namespace, access=access, operator=process)

        yield begin


def keys_of(scene: Scene) -> dict[str, str]:
    scene.until(lambda: scene.get(SECRETS, SECRET), bool)
    data = scene.must_get(SECRETS, SECRET)["data"]
    return {key: base64.b64decode(data[key]).decode() for key in KEYS}


def one_more_worker(scene: Scene) -> None:
    """A pod that starts needs the Secret."""
    scene.kubectl("scale", "rolloutpool", "tiny-home", "--replicas=2")
    scene.has_pods(DATAFLOW, TRAINER, WORKER, SECOND)


@pytest.mark.slow
def test_it_is_made_again_with_the_same_keys_also_by_another_operator(
    start: Callable[..., Scene], namespace: str
) -> None:
    root = {"TRIMTAB_JOB_KEYS__SECRET__NAME": "trimtab-job-keys", "TRIMTAB_JOB_KEYS__SECRET__NAMESPACE": namespace}
    scene = start(**root)
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    before = keys_of(scene)
    scene.kubectl("delete", "secret", SECRET)
    one_more_worker(scene)
    assert keys_of(scene) == before
    # The next operator has never seen it.
    assert scene.operator.stop() == 0
    scene.kubectl("delete", "secret", SECRET)
    scene = start(**root)
    assert keys_of(scene) == before
    made = scene.must_get(SECRETS, SECRET)["metadata"]["ownerReferences"]
    assert [owner["uid"] for owner in made] == [scene.must_get(RLJOBS, "tiny")["metadata"]["uid"]]
    log = scene.operator.log
    stored = base64.b64decode(scene.must_get(SECRETS, "trimtab-job-keys")["data"]["root"]).decode()
    assert not any(secret in log for secret in (*before.values(), stored))


@pytest.mark.slow
def test_without_a_root_the_operator_that_knows_them_makes_it_and_another_refuses_the_job(
    start: Callable[..., Scene],
) -> None:
    scene = start()
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, WORKER)
    before = keys_of(scene)
    scene.until(lambda: scene.must_get(RLJOBS, "tiny").get("status", {}).get("startTime"), bool)
    scene.kubectl("delete", "secret", SECRET)
    one_more_worker(scene)
    assert keys_of(scene) == before
    assert scene.operator.stop() == 0
    kept = scene.must_get(SECRETS, SECRET)
    scene.kubectl("delete", "secret", SECRET)
    scene = start()
    scene.until(lambda: "operator_ready" in scene.operator.log, bool)
    scene.kubectl("delete", "pod", DATAFLOW, SECOND, "--grace-period=0", "--force")

    def accepted() -> str:
        conditions = scene.must_get(RLJOBS, "tiny")["status"].get("conditions", [])
        return " ".join(one.get("message", "") for one in conditions)

    message = scene.until(accepted, lambda text: SECRET in text)
    assert "restore it from a backup, or delete the job" in message
    assert scene.get(SECRETS, SECRET) is None
    # What the message says helps.
    metadata = {name: kept["metadata"][name] for name in ("name", "labels", "ownerReferences")}
    scene.apply({**kept, "metadata": metadata})
    scene.has_pods(DATAFLOW, TRAINER, WORKER, SECOND)
    assert keys_of(scene) == before
