"""Trackers with their own libraries: what each has of a run in the end, also when it was away in the middle."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli.mlflow_server import mlflow_rewards, mlflow_server
from tests.support.cli.run_story import records, score, step
from tests.support.cli.tracker_environment import trackers_packages, trackers_python
from tests.support.dataflow.jobs import job
from tests.support.quickstart_job import make_quickstart
from trimtab.cli.chronicle.file import ChronicleFile
from trimtab.cli.chronicle.records import Measured, Record
from trimtab.cli.tracking.following import Follower
from trimtab.cli.tracking.tracker import TrackerAway
from trimtab.cli.tracking.trackers import follower
from trimtab.embedded.ports import free_ports

# Libraries of others warn of what is theirs.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

REWARDS = {number: number / 50 for number in range(50)}


@pytest.fixture
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, behind what is installed here."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(trackers_packages())])


def _write(folder: Path, told: Iterable[Record]) -> None:
    with ChronicleFile(folder) as file:
        for record in told:
            file.append(record)


def _follower(state: Path, /, **tracker: Any) -> Follower:
    desired = job(tracking=[tracker])
    return follower(desired, desired.spec.tracking[0], manifest_folder=state, state_folder=state)


def _tell(following: Follower) -> None:
    while following.tell():
        pass
    following.close()


def _measured() -> Measured:
    return Measured(at=time.time(), policy="solver", step=50, values={"entropy": 1.25}, tokens_per_second=10.0)


def _scalars(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0, "scalars": 0})
    found.Reload()
    from tensorboard.util import tensor_util

    return {
        tag: {event.step: float(tensor_util.make_ndarray(event.tensor_proto)) for event in found.Tensors(tag)}
        for tag in found.Tags()["tensors"]
    }


@pytest.mark.usefixtures("libraries")
def test_tensorboard_shows_the_curves_of_a_run_and_of_its_resumption(tmp_path: Path) -> None:
    _write(tmp_path, [*records(), _measured()])
    _tell(_follower(tmp_path, type="tensorboard", folder="runs"))
    _write(tmp_path, [step(50), score(50, 0.75)])
    _tell(_follower(tmp_path, type="tensorboard", folder="runs"))
    (run,) = (tmp_path / "runs").iterdir()
    curves = _scalars(run)
    assert curves["solver/reward"] == pytest.approx(REWARDS | {50: 1.0})
    assert curves["solver/evaluation/held-out/score"][50] == pytest.approx(0.75)
    assert curves["solver/trainer/entropy"] == {49: pytest.approx(1.25)}
    assert curves["fleet/decided"]
    (tmp_path / "tracking/tensorboard.cursor.json").unlink()
    _tell(_follower(tmp_path, type="tensorboard", folder="runs"))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["job", "job-2"], "a run that begins anew"


@pytest.mark.usefixtures("libraries")
def test_mlflow_in_a_folder(tmp_path: Path) -> None:
    _write(tmp_path, records())
    _tell(_follower(tmp_path, type="mlflow", folder="mlruns", project="sums"))
    _write(tmp_path, [step(50)])
    _tell(_follower(tmp_path, type="mlflow", folder="mlruns", project="sums"))
    assert mlflow_rewards((tmp_path / "mlruns").as_uri(), project="sums") == pytest.approx(REWARDS | {50: 1.0})


@pytest.mark.usefixtures("libraries")
def test_an_mlflow_server_that_was_away_has_everything_once(tmp_path: Path) -> None:
    told = list(records())
    (port,) = free_ports(1)
    following = _follower(tmp_path, type="mlflow", url=f"http://127.0.0.1:{port}")
    _write(tmp_path, told[:40])
    with pytest.raises(TrackerAway, match="MLflow"):
        following.tell()
    with mlflow_server(tmp_path / "server", port):
        _tell(following)
    _write(tmp_path, told[40:])
    with pytest.raises(TrackerAway, match="MLflow"):
        following.tell()
    following.close()
    with mlflow_server(tmp_path / "server", port) as url:
        _tell(following)
        assert mlflow_rewards(url) == pytest.approx(REWARDS)


@pytest.mark.usefixtures("libraries")
def test_wandb_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    _write(tmp_path, records())
    _tell(_follower(tmp_path, type="wandb", project="sums"))
    (file,) = (tmp_path / "tracking/wandb").rglob("*.wandb")
    history = _wandb_history(file)
    rewards = {int(row["step"]): row["solver/reward"] for row in history if "solver/reward" in row}
    assert rewards == pytest.approx(REWARDS)


def _wandb_history(file: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    store = DataStore()
    store.open_for_scan(str(file))
    rows = []
    while data := store.scan_data():
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return rows


@pytest.mark.usefixtures("libraries")
def test_trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    _write(tmp_path, records())
    _tell(_follower(tmp_path, type="trackio", project="sums"))
    (database,) = (tmp_path / "trackio").rglob("*.db")
    with sqlite3.connect(database) as connection:
        rows = connection.execute("select step, metrics from metrics").fetchall()
    values = [(number, json.loads(text)) for number, text in rows]
    rewards = {number: row["solver/reward"] for number, row in values if "solver/reward" in row}
    assert rewards == pytest.approx(REWARDS)


@pytest.mark.timeout(1800)
def test_a_run_writes_its_curves_while_it_runs(tmp_path: Path) -> None:
    """`trimtab run` as a person runs it, with the libraries where they would have them."""
    file = make_quickstart(tmp_path, name="tracked", max_steps=10)
    manifest = yaml.safe_load(file.read_text())
    manifest["spec"]["tracking"] = [{"type": "tensorboard", "folder": "runs"}]
    file.write_text(yaml.safe_dump(manifest))
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(f"import sys\nsys.path.append({str(trackers_packages())!r})\n")
    command = [sys.executable, "-m", "trimtab.cli.main", "run", str(file)]
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=1500, env=os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    )
    assert ran.returncode == 0, ran.stderr
    log = (tmp_path / ".trimtab/tracked/logs/tracker.tensorboard.log").read_text()
    check = subprocess.run(
        [str(trackers_python()), "-c", _READ, str(tmp_path / "runs/tracked")],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert check.returncode == 0, check.stderr
    tags = json.loads(check.stdout)
    assert sorted(tags["solver/reward"]) == list(range(10)), log
    assert "solver/trainer/grad_norm" in tags, sorted(tags)
    assert "fleet/local/ready" in tags


_READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
found = EventAccumulator(sys.argv[1], size_guidance={"tensors": 0})
found.Reload()
print(json.dumps({tag: [event.step for event in found.Tensors(tag)] for tag in found.Tags()["tensors"]}))
"""
