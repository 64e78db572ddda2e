"""The processes that tell trackers about a run, while it runs: one for each, and none is waited for but for a moment at
the end.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from trimtab.api.job import RLJob
from trimtab.cli.tracking.trackers import environment_of
from trimtab.embedded.child import Child, Command

_GRACE_S = 20.0


@contextmanager
def tracked(job: RLJob, file: Path, state_folder: Path, *, environment: Mapping[str, str]) -> Iterator[None]:
    """While the block runs. What a tracker has not been told at its end, `trimtab track` tells it later."""
    children = []
    try:
        for tracker in job.spec.tracking:
            command = Command(
                arguments=[
                    *(sys.executable, "-m", "trimtab.cli.main", "track", str(file.resolve())),
                    *("--state-folder", str(state_folder), "--only", tracker.type, "--follow"),
                ],
                environment=environment_of(tracker, environment),
                log_file=state_folder / "logs" / f"tracker.{tracker.type}.log",
                folder=state_folder,
            )
            children.append(Child(command))
        yield
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.stop(grace_s=_GRACE_S)
