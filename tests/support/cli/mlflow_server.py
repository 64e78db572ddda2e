"""A real tracking server of MLflow, and what it has of a run."""

from __future__ import annotations

import os
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cli.tracker_environment import trackers_python


@contextmanager
def mlflow_server(folder: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    folder.mkdir(exist_ok=True)
    with (folder / "server.log").open("ab") as log:
        server = subprocess.Popen(
            [
                *(str(trackers_python()), "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)),
                *("--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--default-artifact-root", str(folder)),
                *("--workers", "1"),
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            assert server.poll() is None, (folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=5):
                    break
            except OSError:
                time.sleep(0.5)
        yield url
    finally:
        os.killpg(server.pid, 15)
        server.wait(60)


def mlflow_rewards(uri: str, *, project: str = "trimtab") -> dict[int, float]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(project)
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    return {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "solver/reward")}
