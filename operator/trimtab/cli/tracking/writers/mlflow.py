"""MLflow: a tracking server, or a file store in a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import islice

from trimtab.cli.tracking.points import Point
from trimtab.cli.tracking.tracker import LibraryMissing, Run, TrackerAway

_AT_ONCE = 1000
"""What MLflow takes in one request."""
# The loop that calls us tries again, with jitter and a bound.
_REQUESTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}


class MlflowWriter:
    def __init__(self, run: Run) -> None:
        for name, value in _REQUESTS.items():
            os.environ.setdefault(name, value)
        if run.in_folder:
            # Newer versions of MLflow want to be told that a folder is meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise LibraryMissing("mlflow is not installed: pip install mlflow, or mlflow-skinny") from None
        self._metric, self._failure = Metric, MlflowException
        try:
            self._client = MlflowClient(tracking_uri=run.folder.as_uri() if run.in_folder else run.url)
            self.run_id = run.id or self._begun(run)
        except (MlflowException, OSError) as error:
            raise TrackerAway(f"MLflow: {error}") from None

    def _begun(self, run: Run) -> str:
        experiment = self._client.get_experiment_by_name(run.project)
        number = self._client.create_experiment(run.project) if experiment is None else experiment.experiment_id
        begun = self._client.create_run(number, run_name=run.name, tags={"trimtab.job": run.job})
        return str(begun.info.run_id)

    def write(self, points: Sequence[Point]) -> None:
        metrics = self._metrics(points)
        try:
            while batch := list(islice(metrics, _AT_ONCE)):
                self._client.log_batch(self.run_id, metrics=batch, synchronous=True)
        except (self._failure, OSError) as error:
            raise TrackerAway(f"MLflow: {error}") from None

    def _metrics(self, points: Sequence[Point]) -> Iterator[object]:
        for point in points:
            for name, value in point.values.items():
                yield self._metric(name, value, int(point.at * 1000), point.step)

    def close(self) -> None:
        """Every write was whole."""
