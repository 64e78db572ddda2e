"""A job in a cluster is backed up with what an administrator has, and made anew there or on one machine."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from pydantic import BaseModel

from tests.support.control_planes import NewControlPlane
from tests.support.operator.administrator import administrators_bus
from tests.support.operator.namespaced_operators import namespaced_operators
from tests.support.operator.scene import Scene, tiny_job
from tests.support.template_process import TemplateProcess
from trimtab.cli.main import main
from trimtab.embedded.kube.control_plane import ControlPlane
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, load_settings
from trimtab.kube.access import load_access
from trimtab.kube.resources import RLJOBS, SECRETS, TRAINERS

SECRET = "tiny-credentials"
KEYS = ("weights__signing_seed", "ledger__key")
CLAIM = f"claims/solver/{'0' * 64}"


class _Store(BaseModel):
    object_store: ObjectStoreSettings


@pytest.fixture(scope="module")
def control_plane(new_control_plane: NewControlPlane) -> Iterator[ControlPlane]:
    """One of our own: the operator of the other tests would do the work of ours."""
    with new_control_plane() as plane:
        yield plane


@pytest.fixture
def scene(
    operator_template: TemplateProcess,
    control_plane: ControlPlane,
    servers: dict[str, str],
    namespace: str,
    tmp_path: Path,
) -> Iterator[Scene]:
    access = load_access(control_plane.kubeconfig())
    with namespaced_operators(
        operator_template, control_plane, namespace=namespace, folder=tmp_path, environment=servers
    ) as operator:
        yield Scene(plane=control_plane, namespace=namespace, access=access, operator=operator("0"))


async def stored_row(servers: dict[str, str], topology: JobTopology, *, uid: str) -> None:
    async with await administrators_bus(servers, job_uid=uid) as bus:
        await publish(bus, topology.trajectory_subject("solver"), b"row", message_id="row", deadline_s=60.0)


def streams_of(servers: dict[str, str], topology: JobTopology, *, uid: str) -> Callable[[], bool]:
    async def there() -> bool:
        try:
            async with await administrators_bus(servers, job_uid=uid) as bus:
                await api_call(bus, f"STREAM.INFO.{topology.hand_backs.stream}", deadline_s=5.0)
        except BusError:
            return False
        return True

    return lambda: asyncio.run(there())


async def restored_row(servers: dict[str, str], topology: JobTopology, *, uid: str) -> bytes:
    async with await administrators_bus(servers, job_uid=uid) as bus:
        answer = await api_call(bus, f"STREAM.MSG.GET.{topology.trajectories.name}", {"seq": 1}, deadline_s=30.0)
    return base64.b64decode(answer["message"]["data"])


def objects_below(servers: dict[str, str], prefix: str) -> ObjectStore:
    settings = load_settings(servers, _Store).object_store
    return ObjectStore(settings.model_copy(update={"prefix": prefix}))


async def store_object(servers: dict[str, str], prefix: str) -> None:
    async with objects_below(servers, prefix) as store:
        await store.put(CLAIM, b"claimed")


async def stored_object(servers: dict[str, str], prefix: str) -> bytes:
    async with objects_below(servers, prefix) as store:
        return (await store.get(CLAIM, max_bytes=100)).body


async def rows_in(settings: NatsSettings, topology: JobTopology) -> int:
    async with await Bus.connect(settings, name="restored") as bus:
        info = await api_call(bus, f"STREAM.INFO.{topology.trajectories.name}", deadline_s=30.0)
        return int(info["state"]["messages"])


def test_a_job_is_backed_up_with_its_account_and_its_keys_and_made_anew(
    scene: Scene, servers: dict[str, str], namespace: str, tmp_path: Path
) -> None:
    scene.apply(tiny_job())
    scene.until(lambda: "tiny-dataflow-0" in scene.pods(), bool)
    scene.make_ready("tiny-dataflow-0")  # which has the operator make the streams
    uid = scene.must_get(RLJOBS, "tiny")["metadata"]["uid"]
    topology = JobTopology(namespace, "tiny")
    scene.until(streams_of(servers, topology, uid=uid), bool)
    asyncio.run(stored_row(servers, topology, uid=uid))
    environment = {**servers, "KUBECONFIG": str(scene.plane.kubeconfig())}
    backup, state = tmp_path / "backup", tmp_path / "state"

    def backed_up(prefix: str) -> Result:
        place = {**environment, "TRIMTAB_OBJECT_STORE__PREFIX": prefix}
        command = ["backup", "tiny", str(backup), "--namespace", namespace, "--plain-keys"]
        return CliRunner().invoke(main, command, env=place)

    for prefix in ("", f"{namespace}/other-{uid[:8]}"):
        refused = backed_up(prefix)
        assert refused.exit_code == 1
        assert f"TRIMTAB_OBJECT_STORE__PREFIX: is {prefix!r}" in refused.output
        assert f"{namespace}/tiny-{uid[:8]}" in refused.output
    scene.until(
        lambda: scene.get(TRAINERS, "tiny-solver"), lambda one: bool((one or {}).get("status", {}).get("attempt"))
    )
    asyncio.run(store_object(servers, f"{namespace}/tiny-{uid[:8]}"))
    said = backed_up(f"{namespace}/tiny-{uid[:8]}")
    assert said.exit_code == 0, said.output

    restored = CliRunner().invoke(main, ["restore", str(backup), "--state-folder", str(state)])
    assert restored.exit_code == 0, restored.output
    data = scene.must_get(SECRETS, SECRET)["data"]
    for file, key in (("signing-seed", "weights__signing_seed"), ("ledger-key", "ledger__key")):
        assert (state / file).read_text() == base64.b64decode(data[key]).decode()
    with EmbeddedNats(state / "nats") as nats:
        assert asyncio.run(rows_in(nats.settings, topology)) == 1

    again = CliRunner().invoke(main, ["restore", str(backup), "--cluster"], env=environment)
    assert again.exit_code == 1
    assert f"there is a job tiny in namespace {namespace}: delete it first" in again.output
    attempt = scene.must_get(TRAINERS, "tiny-solver")["status"]["attempt"]
    scene.kubectl("delete", "rljob", "tiny", "--wait=true", "--timeout=300s")
    # There is no garbage collector here.
    for kind in ("secret", "configmap", "trainer", "rolloutpool"):
        scene.kubectl("delete", kind, "--all", "--wait=false")
    scene.kubectl("delete", "pods", "--all", "--wait=false", "--grace-period=0", "--force")
    again = CliRunner().invoke(main, ["restore", str(backup), "--cluster"], env=environment)
    assert again.exit_code == 0, again.output

    anew = scene.must_get(RLJOBS, "tiny")
    assert anew["metadata"]["uid"] != uid
    assert not anew["spec"].get("suspend")
    scene.has_pods("tiny-dataflow-0", "tiny-solver-trainer-0", "tiny-home-rollout-0")
    kept = scene.must_get(SECRETS, SECRET)["data"]
    assert {key: kept[key] for key in KEYS} == {key: data[key] for key in KEYS}
    # Ranks of the attempts before are refused by the ledger.
    assert scene.must_get(TRAINERS, "tiny-solver")["status"]["attempt"] > attempt
    assert asyncio.run(restored_row(servers, topology, uid=anew["metadata"]["uid"])) == b"row"
    assert asyncio.run(stored_object(servers, f"{namespace}/tiny-{anew['metadata']['uid'][:8]}")) == b"claimed"
