"""A run that can be looked at, wherever it is."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trimtab.cli.ui.shown import Figure, Now, Summary, Told
from trimtab.fabric.bus.topology import JobTopology

_STRANGE = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a run's streams are."""

    topology: JobTopology
    state_folder: Path | None
    """Of a job of `trimtab run`; None for one in a cluster, which the environment leads to."""


class Telling(Protocol):
    """What happened in a run."""

    @property
    def told(self) -> Sequence[Told]:
        """Only grows."""

    def figures(self) -> list[Figure]:
        """What it comes down to."""


class Run(Protocol):
    """What is behind the attributes changes while the page looks, in the loop that the page is served from."""

    id: str
    generation: str
    """Another one when what was told is no longer true, as after `--fresh`."""
    now: Now
    summary: Summary

    @property
    def telling(self) -> Telling: ...

    @property
    def place(self) -> Place: ...

    @property
    def is_live(self) -> bool:
        """Whether there is anybody to follow."""

    async def follow(self) -> None:
        """Keeps `now` up to date until it is cancelled. It runs while somebody looks at the run."""


def run_id(name: str, *origin: str) -> str:
    """The same after a restart, and fit for an address."""
    digest = hashlib.sha256("\0".join(origin).encode("utf-8", "surrogateescape")).hexdigest()
    return f"{_STRANGE.sub('_', name)}-{digest[:8]}"
