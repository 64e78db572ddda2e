"""What a tracker has to do for us, and how it says that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trimtab.cli.tracking.points import Point


class TrackerAway(Exception):
    """It does not take anything just now; the message says which and why, without a key."""


class LibraryMissing(Exception):
    """The tracker's library is not installed; the message says what to install."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is written, and where to."""

    job: str
    name: str
    project: str
    folder: Path
    in_folder: bool = False
    """Whether the manifest asks for a folder where the tracker could be a server as well."""
    url: str | None = None
    id: str = ""
    """As the tracker called the run when it was begun; empty for one that is yet to begin."""


class TrackerWriter(Protocol):
    """Open towards one run. Anything may raise TrackerAway: then it is closed, and a new one is opened later."""

    @property
    def run_id(self) -> str:
        """By which a later process finds the same run."""

    def write(self, points: Sequence[Point]) -> None:
        """When it returns, the tracker has them. The same points may come twice, after a failure."""

    def close(self) -> None:
        """Without waiting for long."""
