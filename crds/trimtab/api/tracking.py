"""Where a run's curves go besides Prometheus: the trackers that people look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import only_with
from trimtab.api.scalars import Location, SecretKey, Url

TrackerType = Literal["tensorboard", "mlflow", "wandb", "trackio"]
KEY_VARIABLES: Mapping[TrackerType, str] = {
    "wandb": "WANDB_API_KEY",
    "mlflow": "MLFLOW_TRACKING_TOKEN",
    "trackio": "HF_TOKEN",
}
"""The environment variable in which each library looks for its key."""
TrackerText = Annotated[str, Field(min_length=1, max_length=128)]


class Tracker(ApiModel):
    """One tracker. It is told everything that the history of the run has, and catches up after it was away."""

    rules = (
        only_with("folder", condition="self.type in ['tensorboard', 'mlflow']", when="to tensorboard and mlflow"),
        only_with("url", condition="self.type in ['mlflow', 'wandb']", when="to mlflow and wandb"),
        only_with("project", condition="self.type != 'tensorboard'", when="to trackers that have projects"),
        only_with("keySecret", condition="self.type != 'tensorboard'", when="to trackers that ask for a key"),
    )

    type: TrackerType
    """Which library it is written with; for `trimtab run` it must be installed: `pip install` its name."""
    project: TrackerText | None = None
    """Project of the tracker, MLflow's experiment; absent, `trimtab`."""
    run: TrackerText | None = None
    """Name of the run there; absent, that of the job."""
    folder: Location | None = None
    """Where files go, relative to the manifest; absent, `tracking/<type>` in the state folder. In a cluster a path on a
    volume of trackingTemplate, which tensorboard needs. For MLflow a folder is its file store, in place of a server."""
    url: Url | None = None
    """Address of a server of one's own; absent, where the tracker's usual variables lead, and in a cluster Weights &
    Biases' own."""
    key_secret: SecretKey | None = None
    """The key. With `trimtab run`, where the environment has none: WANDB_API_KEY, MLFLOW_TRACKING_TOKEN, HF_TOKEN."""
