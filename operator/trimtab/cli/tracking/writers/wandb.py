"""Weights & Biases: online, on a server of one's own, or offline (WANDB_MODE=offline) to be sent by `wandb sync`."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from trimtab.cli.tracking.points import Point
from trimtab.cli.tracking.tracker import LibraryMissing, Run, TrackerAway

_STEP = "step"
_INIT_S = 60.0
_FINISH_S = 30


class WandbWriter:
    def __init__(self, run: Run) -> None:
        if run.url is not None:
            os.environ.setdefault("WANDB_BASE_URL", run.url)
        try:
            import wandb
        except ImportError:
            raise LibraryMissing("wandb is not installed: pip install wandb") from None
        self.run_id = run.id or uuid.uuid4().hex[:16]
        run.folder.mkdir(parents=True, exist_ok=True)
        self._failure = wandb.Error
        try:
            self._run = wandb.init(
                project=run.project,
                name=run.name,
                id=self.run_id,
                resume="allow",
                dir=str(run.folder),
                settings=wandb.Settings(
                    init_timeout=_INIT_S, console="off", silent=True, x_disable_stats=True, x_disable_meta=True
                ),
            )
            # Its own step only ever rises, and counts calls.
            self._run.define_metric("*", step_metric=_STEP)
        except (wandb.Error, OSError) as error:
            raise TrackerAway(f"wandb: {type(error).__name__}: {error}") from None

    def write(self, points: Sequence[Point]) -> None:
        try:
            for point in points:
                self._run.log({**point.values, _STEP: point.step})
        except (self._failure, OSError) as error:
            raise TrackerAway(f"wandb: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        try:
            self._run.finish()
        except (self._failure, OSError) as error:
            raise TrackerAway(f"wandb: {type(error).__name__}: {error}") from None
