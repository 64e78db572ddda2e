"""Trackio: a local database, which its own dashboard shows."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

from trimtab.cli.tracking.points import Point
from trimtab.cli.tracking.tracker import LibraryMissing, Run, TrackerAway


class TrackioWriter:
    def __init__(self, run: Run) -> None:
        os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
        try:
            import trackio
        except ImportError:
            raise LibraryMissing("trackio is not installed: pip install trackio") from None
        # A run that begins anew is another one than the one before, of whatever name.
        self.run_id = run.id or f"{run.name}-{uuid.uuid4().hex[:6]}"
        try:
            self._run = trackio.init(
                project=run.project, name=self.run_id, resume="allow", embed=False, auto_log_gpu=False
            )
        except (OSError, RuntimeError, ValueError) as error:
            raise TrackerAway(f"trackio: {type(error).__name__}: {error}") from None

    def write(self, points: Sequence[Point]) -> None:
        try:
            for point in points:
                self._run.log(dict(point.values), step=point.step)
        except (OSError, RuntimeError, ValueError) as error:
            raise TrackerAway(f"trackio: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        self._run.finish()
