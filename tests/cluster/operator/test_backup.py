"""A job in a cluster is backed up with what an administrator has, and made anew on one machine."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

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
from trimtab.fabric.settings import NatsSettings
from trimtab.kube.access import load_access
from trimtab.kube.resources import RLJOBS, SECRETS

SECRET = "tiny-credentials"


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


async def rows_in(settings: NatsSettings, topology: JobTopology) -> int:
    async with await Bus.connect(settings, name="restored") as bus:
        info = await api_call(bus, f"STREAM.INFO.{topology.trajectories.name}", deadline_s=30.0)
        return int(info["state"]["messages"])


@pytest.mark.slow
def test_a_job_is_backed_up_with_its_account_and_its_keys(
    scene: Scene, servers: dict[str, str], namespace: str, tmp_path: Path
) -> None:
    scene.apply(tiny_job())
    scene.has_pods("tiny-dataflow-0")
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
    said = backed_up(f"{namespace}/tiny-{uid[:8]}")
    assert said.exit_code == 0, said.output

    restored = CliRunner().invoke(main, ["restore", str(backup), "--state-folder", str(state)])
    assert restored.exit_code == 0, restored.output
    data = scene.must_get(SECRETS, SECRET)["data"]
    for file, key in (("signing-seed", "weights__signing_seed"), ("ledger-key", "ledger__key")):
        assert (state / file).read_text() == base64.b64decode(data[key]).decode()
    with EmbeddedNats(state / "nats") as nats:
        assert asyncio.run(rows_in(nats.settings, topology)) == 1
