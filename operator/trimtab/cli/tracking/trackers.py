"""From spec.tracking to what writes: which module, which run, which key."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from trimtab.api.job import RLJob
from trimtab.api.tracking import KEY_VARIABLES, Tracker, TrackerType
from trimtab.cli.tracking.following import Follower
from trimtab.cli.tracking.tracker import Run, TrackerWriter
from trimtab.cli.tracking.writers.mlflow import MlflowWriter
from trimtab.cli.tracking.writers.tensorboard import TensorBoardWriter
from trimtab.cli.tracking.writers.trackio import TrackioWriter
from trimtab.cli.tracking.writers.wandb import WandbWriter
from trimtab.operator.local.executor import secret_variable

_PROJECT = "trimtab"
_WRITERS: Mapping[TrackerType, Callable[[Run], TrackerWriter]] = {
    "tensorboard": TensorBoardWriter,
    "mlflow": MlflowWriter,
    "wandb": WandbWriter,
    "trackio": TrackioWriter,
}


def follower(job: RLJob, tracker: Tracker, *, manifest_folder: Path, state_folder: Path) -> Follower:
    own = state_folder / "tracking"
    run = Run(
        job=job.metadata.name,
        name=tracker.run or job.metadata.name,
        project=tracker.project or _PROJECT,
        folder=own / tracker.type if tracker.folder is None else (manifest_folder / tracker.folder).resolve(),
        in_folder=tracker.folder is not None,
        url=tracker.url,
    )
    cursor = cursor_file(state_folder, tracker.type)
    return Follower(run, _WRITERS[tracker.type], state_folder=state_folder, cursor_file=cursor)


def cursor_file(state_folder: Path, tracker: TrackerType) -> Path:
    return state_folder / "tracking" / f"{tracker}.cursor.json"


def problems(trackers: Sequence[Tracker], environment: Mapping[str, str]) -> list[str]:
    """Libraries and keys that are missing, each with its field and the fix."""
    found = []
    for tracker in trackers:
        field = f"spec.tracking[{tracker.type}]"
        if importlib.util.find_spec(tracker.type) is None:
            found.append(f"{field}: the library is not installed here: pip install {tracker.type}")
        secret, variable = tracker.key_secret, KEY_VARIABLES.get(tracker.type, "")
        if secret is not None and not environment.get(variable) and secret_variable(secret) not in environment:
            found.append(
                f"{field}.keySecret: set {variable}, or {secret_variable(secret)} to the value of key {secret.key} of"
                f" secret {secret.name}"
            )
    return found


def environment_of(tracker: Tracker, environment: Mapping[str, str]) -> dict[str, str]:
    """Of the process that writes: ours, with the key where the library looks for it."""
    own = dict(environment)
    if tracker.key_secret is not None and not own.get(KEY_VARIABLES[tracker.type]):
        own[KEY_VARIABLES[tracker.type]] = environment[secret_variable(tracker.key_secret)]
    return own
