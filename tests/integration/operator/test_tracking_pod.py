"""The process of the pod that writes to trackers, as its role: a real bus, a real store, and a real MLflow server where
one is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.support.cli.mlflow_server import mlflow_rewards, mlflow_server
from tests.support.cli.tracker_environment import trackers_packages
from tests.support.fabric.account_users import (
    declared_by_the_operator,
    operator_bus,
    registered,
    settings_of,
    violations,
)
from tests.support.operator.scene import tiny_job
from tests.support.polling import eventually
from trimtab.cli.chronicle.file import FILE_NAME
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.embedded.ports import free_ports
from trimtab.embedded.seaweedfs import JOB_ROLE_ARN, EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.fleet_note import Decision, FleetNote, TrainerFailure, write_fleet_note
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.settings import ObjectStoreSettings, PodSettings, Settings, environment_for
from trimtab.fabric.wire.envelope import encode
from trimtab.fabric.wire.member import MemberHeartbeat, Role, State
from trimtab.fabric.wire.progress import StepProgress
from trimtab.operator.pods.storage_policy import JobPlace
from trimtab.operator.settings import StorageRoleSettings, StsSettings
from trimtab.operator.storage_mint import StorageMint

pytestmark = pytest.mark.timeout(900)
_JOB, _NAMESPACE, _PREFIX = "tiny", "team", "all/team/tiny-12345678"
_S = 30.0


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, behind what is installed here."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(trackers_packages())])


@dataclass
class _Place:
    nats: EmbeddedNatsWithAccounts
    store: EmbeddedSeaweed
    folder: Path
    topology: JobTopology

    def write_job(self, url: str) -> None:
        manifest = tiny_job(tracking=[{"type": "mlflow", "url": url}])
        manifest["metadata"] |= {"name": _JOB, "namespace": _NAMESPACE}
        (self.folder / "job.yaml").write_text(yaml.safe_dump(manifest))

    async def environment(self, *, packages: Path | None = None) -> dict[str, str]:
        """As the operator writes it into the pod, with credentials of this role alone. `packages` are those of
        trackers."""
        settings = StorageRoleSettings(sts=StsSettings(role_arn=JOB_ROLE_ARN))
        mint = StorageMint(settings, self.store.settings, clock=lambda: 1e9)
        place = JobPlace(bucket="trimtab", prefix=_PREFIX, policies=("solver",))
        keys = await mint.keys(place, roles=("tracking",), session="12345678")
        file = self.folder / "store-credentials"
        file.write_text(keys["tracking"].as_file())
        pod = Settings(
            pod=PodSettings(namespace=_NAMESPACE, job=_JOB, role="tracking", name="tiny-tracking"),
            nats=settings_of(self.nats, "tracking", self.topology, self.folder),
            object_store=ObjectStoreSettings(
                bucket="trimtab",
                prefix=_PREFIX,
                endpoint_url=self.store.settings.endpoint_url,
                credentials_file=file,
            ),
        )
        if packages is not None:
            (self.folder / "site").mkdir(exist_ok=True)
            (self.folder / "site/sitecustomize.py").write_text(f"import sys\nsys.path.append({str(packages)!r})\n")
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **environment_for(pod),
            "TRIMTAB_PROBES__PORT": "0",
            "TRIMTAB_JOB_FILE": str(self.folder / "job.yaml"),
            **({} if packages is None else {"PYTHONPATH": str(self.folder / "site")}),
        }


@contextmanager
def _pod(place: _Place, environment: dict[str, str], *, scratch: str) -> Iterator[subprocess.Popen[bytes]]:
    with (place.folder / "pod.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "trimtab.cli.tracking.cluster"],
            env=environment | {"TRIMTAB_SCRATCH": str(place.folder / scratch)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        # With what tells trackers, as a container's end takes all of it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)


@pytest.fixture
async def place(tmp_path: Path) -> Any:
    topology = JobTopology(_NAMESPACE, _JOB)
    with EmbeddedNatsWithAccounts(tmp_path / "nats") as nats, EmbeddedSeaweed(tmp_path / "store") as store:
        yield _Place(nats, store, tmp_path, topology)


def _progress(step: int) -> bytes:
    return encode(
        StepProgress(
            job=_JOB, policy="solver", step=step, reward=step / 10, staleness=1.0, max_staleness=2, wait_fraction=0.1,
            samples=step + 1, buffered=0, running=0, dropped=0, at=1e6 + step,
        )
    )  # fmt: skip


def _heartbeat() -> bytes:
    return encode(
        MemberHeartbeat(
            member_id="rank", job=_JOB, role=Role.TRAINER, state=State.READY, versions={"solver": 10},
            measures={"entropy": 1.5}, started_at=1e6, sent_at=time.time(),
        )
    )  # fmt: skip


def _note(*, wanted: int, decided: tuple[int, ...]) -> FleetNote:
    """Sizes that the autoscaler decided, one after another, and a trainer that failed after the first."""
    return FleetNote(
        wanted={"home": wanted},
        decisions=tuple(
            Decision(
                at=1e6 + size, before=1, after=size, reason="TrainerStarving", message="it waits", maintainer="Policy"
            )
            for size in decided
        ),
        failures=(TrainerFailure(trainer="tiny-solver", number=1, at=1e6 + 2.5, pod="rank-0", why="killed"),),
    )


def _kept(place: _Place) -> bytes:
    """What a pod that begins on another node finds."""
    settings = place.store.settings
    assert settings.access_key_id is not None
    assert settings.secret_access_key is not None
    client = boto3.client(
        "s3",
        endpoint_url=settings.endpoint_url,
        region_name="us-east-1",
        aws_access_key_id=settings.access_key_id.get_secret_value(),
        aws_secret_access_key=settings.secret_access_key.get_secret_value(),
    )
    try:
        body: bytes = client.get_object(Bucket="trimtab", Key=f"{_PREFIX}/tracking/notebook")["Body"].read()
    except client.exceptions.NoSuchKey:
        return b""
    return body


@asynccontextmanager
async def _heard_ones(place: _Place) -> AsyncIterator[tuple[KeyValue, KeyValue, Bus]]:
    """Whom the pod hears, each as its own user: the dataflow's progress, the trainers' heartbeats, the operator."""
    await registered(place.nats, place.topology)
    dataflow_settings = settings_of(place.nats, "dataflow", place.topology, place.folder)
    trainer_settings = settings_of(place.nats, "trainer", place.topology, place.folder)
    async with (
        await Bus.connect(dataflow_settings, name="dataflow") as dataflow,
        await Bus.connect(trainer_settings, name="trainer") as trainer,
        operator_bus(place.nats, place.topology) as operator,
    ):
        yield KeyValue(dataflow, place.topology.balance), KeyValue(trainer, place.topology.members), operator


async def test_a_pod_whose_trackers_library_is_missing_says_so_and_what_it_heard_is_kept(place: _Place) -> None:
    place.write_job("http://mlflow.invalid")
    log, environment = place.folder / "pod.log", await place.environment()
    async with _heard_ones(place) as (balance, members, operator):
        await declared_by_the_operator(place.nats, place.topology)
        key = place.topology.progress_key("solver")
        for step in range(3):
            await balance.put(key, _progress(step), deadline_s=60.0)
        await write_fleet_note(operator, place.topology, _note(wanted=2, decided=(2,)), deadline_s=60.0)
        with _pod(place, environment, scratch="first") as first:

            async def all_heard() -> bool:
                await members.put("rank", _heartbeat(), deadline_s=60.0)
                told = _history(place, "first")
                return {"step", "measured", "rescaled", "died"} <= set(told) and told.count("step") == 3

            await eventually(all_heard, timeout_s=_S, ended=first.poll)
            missing = "the library is not installed here: pip install mlflow"
            await eventually(lambda: missing in log.read_text(), timeout_s=_S, ended=first.poll)
            await balance.put(key, _progress(3), deadline_s=60.0)
            first.send_signal(signal.SIGTERM)
            assert first.wait(120) == 0, log.read_text()[-4000:]
        assert "tracker_not_told" in log.read_text()
        # On another node it has all of it, and what it hears again it knows.
        with _pod(place, environment, scratch="second") as second:
            await balance.put(key, _progress(4), deadline_s=60.0)
            await eventually(lambda: _history(place, "second").count("step") == 5, timeout_s=_S, ended=second.poll)
            told = _history(place, "second")
            assert (told.count("rescaled"), told.count("died")) == (1, 1)
    assert violations(place.nats) == []


def _history(place: _Place, scratch: str) -> list[str]:
    """What each record is of."""
    file = place.folder / scratch / FILE_NAME
    return [json.loads(line)["what"] for line in file.read_bytes().splitlines()] if file.exists() else []


# Libraries of others warn of what is theirs.
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.usefixtures("libraries")
async def test_a_tracker_that_was_away_and_a_pod_that_died_lose_nothing(place: _Place) -> None:
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    place.write_job(url)
    log, environment = place.folder / "pod.log", await place.environment(packages=trackers_packages())
    async with _heard_ones(place) as (balance, members, operator):
        # It waits for what it may not make.
        with _pod(place, environment, scratch="first") as first:
            await declared_by_the_operator(place.nats, place.topology)
            key = place.topology.progress_key("solver")
            for step in range(10):
                await balance.put(key, _progress(step), deadline_s=60.0)
            await write_fleet_note(operator, place.topology, _note(wanted=2, decided=(2,)), deadline_s=60.0)
            history = place.folder / "first/history.jsonl"

            async def measured() -> bool:
                await members.put("rank", _heartbeat(), deadline_s=60.0)
                return history.exists() and b'"measured"' in history.read_bytes()

            await eventually(measured, timeout_s=_S)
            # MLflow is away, and the pod's node dies with what it has.
            await eventually(lambda: "tracker_away" in log.read_text(), timeout_s=_S)
            await eventually(lambda: all(one in _kept(place) for one in (b'"measured"', b'"rescaled"')), timeout_s=_S)
            assert first.poll() is None, log.read_text()[-4000:]
        for step in range(10, 20):
            await balance.put(key, _progress(step), deadline_s=60.0)
        await write_fleet_note(operator, place.topology, _note(wanted=3, decided=(2, 3)), deadline_s=60.0)
        with mlflow_server(place.folder / "server", port):
            with _pod(place, environment, scratch="second"):
                await eventually(
                    lambda: _rewards(url) == pytest.approx({step: step / 10 for step in range(20)}),
                    timeout_s=_S,
                    interval_s=1.0,
                )
                await eventually(lambda: b"run_id" in _kept(place), timeout_s=_S)
            # On another node it goes on in the same run, and tells what is left when the job is at rest.
            with _pod(place, environment, scratch="third") as third:
                await eventually((place.folder / "third/history.jsonl").exists, timeout_s=_S)
                await balance.put(key, _progress(20), deadline_s=60.0)
                await write_fleet_note(operator, place.topology, _note(wanted=3, decided=(2, 3, 4)), deadline_s=60.0)
                third.send_signal(signal.SIGTERM)
                assert third.wait(120) == 0, log.read_text()[-4000:]
            assert _rewards(url) == pytest.approx({step: step / 10 for step in range(21)})
            assert _steps(url, "solver/trainer/entropy") == {9}
            assert _values(url, "fleet/decided") == [2, 3, 4], "each once, also what was decided while it was away"
            assert _values(url, "trainer_restarts") == [1]
            assert set(_values(url, "fleet/home/wanted")) == {2, 3}
    assert violations(place.nats) == []


def _rewards(url: str) -> dict[int, float]:
    try:
        return mlflow_rewards(url)
    except AssertionError:
        return {}


def _steps(url: str, name: str) -> set[int]:
    return {metric.step for metric in _metrics(url, name)}


def _values(url: str, name: str) -> list[float]:
    """In the order in which they were told."""
    return [metric.value for metric in sorted(_metrics(url, name), key=lambda metric: metric.timestamp)]


def _metrics(url: str, name: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=url)
    experiment = client.get_experiment_by_name("trimtab")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return list(client.get_metric_history(run.info.run_id, name))
