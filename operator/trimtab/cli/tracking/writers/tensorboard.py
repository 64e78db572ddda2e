"""TensorBoard: event files in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path

from trimtab.cli.tracking.points import Point
from trimtab.cli.tracking.tracker import LibraryMissing, Run, TrackerAway


class TensorBoardWriter:
    def __init__(self, run: Run) -> None:
        try:
            from tensorboard.summary import Writer
        except ImportError:
            raise LibraryMissing("tensorboard is not installed: pip install tensorboard") from None
        self.run_id = run.id or _unused(run.folder, run.name)
        try:
            self._writer = Writer(str(run.folder / self.run_id))
        except OSError as error:
            raise TrackerAway(f"{run.folder} cannot be written to: {error.strerror}") from None

    def write(self, points: Sequence[Point]) -> None:
        try:
            for point in points:
                for name, value in point.values.items():
                    self._writer.add_scalar(name, value, step=point.step, wall_time=point.at)
            self._writer.flush()
        except OSError as error:
            raise TrackerAway(f"event files cannot be written to: {error.strerror}") from None

    def close(self) -> None:
        self._writer.close()


def _unused(folder: Path, name: str) -> str:
    """A run that begins anew is another curve than the one before."""
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    return next(name for name in names if not (folder / name).exists())
