"""Operators that follow one another: by failure, in good order, with other credentials, and without the bus."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.operator.namespaced_operators import namespaced_operators
from tests.support.operator.operator_process import OperatorProcess
from tests.support.operator.scene import Scene, tiny_job
from tests.support.template_process import TemplateProcess
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.settings import environment_for
from trimtab.kube.access import load_access
from trimtab.kube.resources import LEASES, RLJOBS, SECRETS

pytestmark = pytest.mark.slow

DATAFLOW, TRAINER = "tiny-dataflow-0", "tiny-solver-trainer-0"
FIRST, SECOND = "tiny-home-rollout-0", "tiny-home-rollout-1"


@pytest.fixture(scope="module")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """One of our own: the operator of the other tests would do the work of ours."""
    with new_control_plane() as plane:
        yield plane


@pytest.fixture
def operator_of(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    namespace: str,
    tmp_path: Path,
) -> Iterator[Callable[..., OperatorProcess]]:
    # With the operator's own key for all pods, as for a store without an STS.
    own = {name: value for name, value in servers.items() if "STORAGE_ROLES" not in name}
    with namespaced_operators(
        operator_template, control_plane, namespace=namespace, folder=tmp_path, environment=own
    ) as operator:
        yield operator


@pytest.fixture
def scene_of(control_plane: ControlPlane, namespace: str) -> Callable[[OperatorProcess], Scene]:
    access = load_access(control_plane.kubeconfig())
    return lambda operator: Scene(plane=control_plane, namespace=namespace, access=access, operator=operator)


def _holder(scene: Scene) -> str:
    return str((scene.get(LEASES, "trimtab-operator") or {"spec": {}})["spec"].get("holderIdentity") or "")


def test_one_works_and_the_other_takes_over(
    operator_of: Callable[..., OperatorProcess], scene_of: Callable[[OperatorProcess], Scene]
) -> None:
    one = operator_of("one", TRIMTAB_LEASE__DURATION_S="15")
    scene = scene_of(one)
    scene.until(lambda: "operator_ready" in one.log, bool)
    two = operator_of("two")
    scene.apply(tiny_job())
    scene.has_pods(DATAFLOW, TRAINER, FIRST)
    assert _holder(scene) == "one"
    assert "leading" not in two.log
    one.kill()
    scene = scene_of(two)
    scene.kubectl("scale", "rolloutpool", "tiny-home", "--replicas=2")
    scene.has_pods(DATAFLOW, TRAINER, FIRST, SECOND)
    assert _holder(scene) == "two"
    # Told to go, it gives the lease back, and nobody waits for it to run out.
    three = operator_of("three")
    assert two.stop() == 0
    scene = scene_of(three)
    scene.kubectl("scale", "rolloutpool", "tiny-home", "--replicas=1")
    scene.until(lambda: scene.pods("rollout"), lambda pods: len(pods) == 1)
    assert _holder(scene) == "three"


def test_other_credentials_reach_the_jobs_that_run_and_the_signing_seed_stays(
    operator_of: Callable[..., OperatorProcess], scene_of: Callable[[OperatorProcess], Scene]
) -> None:
    one = operator_of("one")
    scene = scene_of(one)
    scene.apply(tiny_job())
    pods = scene.has_pods(DATAFLOW, TRAINER, FIRST)
    before = scene.must_get(SECRETS, "tiny-credentials")["data"]
    assert one.stop() == 0
    # The store is not asked in this test, so any key will do.
    two = operator_of("two", TRIMTAB_OBJECT_STORE__SECRET_ACCESS_KEY="rotated")
    scene = scene_of(two)
    after = scene.until(lambda: scene.must_get(SECRETS, "tiny-credentials")["data"], lambda data: data != before)
    assert base64.b64decode(after["object_store__secret_access_key"]) == b"rotated"
    assert after["weights__signing_seed"] == before["weights__signing_seed"]
    now = scene.pods()
    assert {pod["metadata"]["uid"] for pod in now.values()} == {pod["metadata"]["uid"] for pod in pods.values()}
    assert "rotated" not in two.log


def test_users_of_nats_are_made_anew_before_they_expire(
    operator_of: Callable[..., OperatorProcess], scene_of: Callable[[OperatorProcess], Scene]
) -> None:
    operator = operator_of("one", TRIMTAB_NATS_ACCOUNTS__RENEWAL_S="3", TRIMTAB_RESYNC_S="1")
    scene = scene_of(operator)
    scene.apply(tiny_job())
    pods = scene.has_pods(DATAFLOW, TRAINER, FIRST)
    before = scene.must_get(SECRETS, "tiny-credentials")["data"]
    after = scene.until(lambda: scene.must_get(SECRETS, "tiny-credentials")["data"], lambda data: data != before)
    assert {key for key in after if after[key] != before[key]} == {
        f"nats-credentials-{role}" for role in ("dataflow", "rollout", "trainer")
    }
    # The file is renewed where it is, and nobody is restarted for it.
    now = scene.pods()
    assert {pod["metadata"]["uid"] for pod in now.values()} == {pod["metadata"]["uid"] for pod in pods.values()}
    assert base64.b64decode(after["nats-credentials-rollout"]).decode().splitlines()[1] not in operator.log


@contextmanager
def _bus(folder: Path) -> Iterator[tuple[EmbeddedNatsWithAccounts, dict[str, str]]]:
    with EmbeddedNatsWithAccounts(folder) as nats:
        environment = environment_for(nats.address)
        own = {name.replace("TRIMTAB_", "TRIMTAB_NATS__", 1): value for name, value in environment.items()}
        yield nats, {"TRIMTAB_NATS_ACCOUNTS__SEED_FILE": str(nats.operator_seed_file), **own}


def test_a_job_can_be_deleted_while_the_bus_is_away(
    operator_of: Callable[..., OperatorProcess], scene_of: Callable[[OperatorProcess], Scene], tmp_path: Path
) -> None:
    with _bus(tmp_path / "nats") as (nats, environment):
        operator = operator_of("one", TRIMTAB_DELETION_DEADLINE_S="8", **environment)
        scene = scene_of(operator)
        scene.apply(tiny_job())
        scene.has_pods(DATAFLOW, TRAINER, FIRST)
        nats.stop()
        scene.kubectl("delete", "rljob", "tiny", "--wait=false")
        # It is kept while there is hope, and says in the end what it has left behind.
        assert scene.get(RLJOBS, "tiny") is not None
        scene.job_gone("tiny")
        scene.until(lambda: scene.reasons("tiny"), lambda reasons: "CleanupIncomplete" in reasons)
