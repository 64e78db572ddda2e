"""The operator is upgraded under a running job, and rolled back: pods go on, and each that is made anew is of the
operator's version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.control_planes import NewControlPlane
from tests.support.operator.operator_process import OperatorProcess, grant_namespaced_role
from tests.support.operator.scene import Scene, tiny_job
from tests.support.released.next_version import make_next_operator
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.kube.access import load_access
from trimtab.kube.resources import RLJOBS, ROLLOUT_POOLS, SECRETS, TRAINERS

pytestmark = pytest.mark.slow

OLD, NEW = "trimtab:1", "trimtab:2"
DATAFLOW, TRAINER, WORKER = "tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0"
KEYS = ("weights__signing_seed", "ledger__key")
Operate = Callable[..., OperatorProcess]


@pytest.fixture(scope="module")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """One of our own: the operator of the other tests would do the work of ours."""
    with new_control_plane() as plane:
        yield plane


@pytest.fixture
def operate(control_plane: ControlPlane, servers: dict[str, str], namespace: str, tmp_path: Path) -> Iterator[Operate]:
    """Replaces the operator, as its Deployment does."""
    user = grant_namespaced_role(control_plane, namespace)
    started: list[OperatorProcess] = []

    def begin(*, image: str, tree: Path | None = None) -> OperatorProcess:
        for one in started[-1:]:
            assert one.stop() == 0, one.log[-1500:]
        environment = {**servers, "TRIMTAB_IMAGES": image, "TRIMTAB_LEASE__DURATION_S": "120"}
        if tree is not None:
            environment["PYTHONPATH"] = str(tree)
        folder = tmp_path / f"operator-{len(started)}"
        process = OperatorProcess(
            folder, plane=control_plane, environment=environment, user=user, home=namespace
        ).start("--namespace", namespace)
        started.append(process)
        return process

    yield begin
    for one in started:
        if one.ended() is None:
            one.kill()
        faults = [line for line in one.log.splitlines() if "reconcile_faulted" in line or "Traceback" in line]
        assert faults == []


def images(scene: Scene) -> dict[str, str]:
    """By pod."""
    return {name: pod["spec"]["containers"][0]["image"] for name, pod in scene.pods().items()}


def uids(scene: Scene) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in scene.pods().items()}


def keys(scene: Scene) -> dict[str, str]:
    data = scene.must_get(SECRETS, "tiny-credentials")["data"]
    return {key: data[key] for key in KEYS}


def attempt(scene: Scene) -> int:
    return int(scene.must_get(TRAINERS, "tiny-solver")["status"]["attempt"])


def taken_over(scene: Scene, *, replicas: int) -> None:
    """Until the operator has done something that it was asked for after it began."""
    scene.kubectl("scale", "rolloutpool/tiny-home", f"--replicas={replicas}")
    scene.until(lambda: len(scene.pods("rollout")), lambda count: count == replicas)
    scene.until(
        lambda: (scene.get(ROLLOUT_POOLS, "tiny-home") or {}).get("status", {}).get("replicas"),
        lambda count: count == replicas,
    )


def replaced(scene: Scene, part: str, *, image: str) -> None:
    """What is deleted comes again, of that image, and no other pod does."""
    before = uids(scene)
    (pod,) = scene.pods(part)
    scene.kubectl("delete", "pod", pod, "--grace-period=0", "--force")
    (made,) = scene.until(
        lambda: [name for name, uid in uids(scene).items() if part in name and uid != before[pod]], bool
    )
    scene.make_ready(made)
    assert images(scene)[made] == image
    assert {name: uid for name, uid in uids(scene).items() if name != made} == {
        name: uid for name, uid in before.items() if name != pod
    }


def made_otherwise(scene: Scene) -> None:
    """The dataflow, by the operator itself; there is no kubelet that would end the pod."""
    before = uids(scene)[DATAFLOW]
    scene.until(lambda: DATAFLOW not in scene.pods(), bool)
    scene.kubectl("delete", "pod", DATAFLOW, "--grace-period=0", "--force")
    scene.until(lambda: uids(scene).get(DATAFLOW), lambda uid: uid not in (None, before))
    scene.make_ready(DATAFLOW)


def test_pods_go_on_while_the_operator_is_upgraded_and_rolled_back(
    operate: Operate, control_plane: ControlPlane, namespace: str
) -> None:
    access = load_access(control_plane.kubeconfig())
    scene = Scene(plane=control_plane, namespace=namespace, access=access, operator=operate(image=OLD))
    scene.apply(tiny_job())
    first = scene.has_pods(DATAFLOW, TRAINER, WORKER)
    scene.make_ready(*first)
    scene.says(TRAINERS, "tiny-solver", "Ready", "RanksReady")
    began, known, tried = uids(scene), keys(scene), attempt(scene)
    assert set(images(scene).values()) == {OLD}

    for image, before in ((NEW, OLD), (OLD, NEW)):
        scene = replace(scene, operator=operate(image=image))
        taken_over(scene, replicas=2)
        now, of = uids(scene), images(scene)
        assert began.items() <= now.items()
        assert {of.pop(name) for name in began} == {before}
        assert list(of.values()) == [image], "the pod that is new is of this version"
        assert attempt(scene) == tried
        taken_over(scene, replicas=1)
        # A user who wants the job upgraded too deletes its pods, one role after the other.
        for part in ("-dataflow-", "-rollout-", "-trainer-"):
            replaced(scene, part, image=image)
        tried += 1
        scene.until(lambda: attempt(scene), lambda now: now == tried)  # noqa: B023 - called in this turn
        began = uids(scene)
        assert set(images(scene).values()) == {image}
        assert keys(scene) == known, "the job's trainers and its dataflow sign with what they have signed with"
    assert scene.condition(RLJOBS, "tiny", "Accepted")["status"] == "True"


def test_only_those_pods_are_made_anew_that_a_version_makes_otherwise(
    operate: Operate, control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    """The next version gives dataflows more time to end."""
    access = load_access(control_plane.kubeconfig())
    scene = Scene(plane=control_plane, namespace=namespace, access=access, operator=operate(image=OLD))
    scene.apply(tiny_job())
    scene.make_ready(*scene.has_pods(DATAFLOW, TRAINER, WORKER))
    began = uids(scene)
    tree = make_next_operator(tmp_path / "next")
    for later in (tree, None):
        scene = replace(scene, operator=operate(image=OLD, tree=later))
        made_otherwise(scene)
        now = uids(scene)
        assert {TRAINER: now[TRAINER], WORKER: now[WORKER]} == {TRAINER: began[TRAINER], WORKER: began[WORKER]}
        grace = scene.pods()[DATAFLOW]["spec"]["terminationGracePeriodSeconds"]
        assert grace == (10 if later is None else 12)
        began = now
