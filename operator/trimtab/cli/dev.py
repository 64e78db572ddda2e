"""`trimtab dev`: what a developer of manifests or of Trimtab itself starts on a laptop, and what those commands share:
where the state lives, and running until Ctrl-C.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from trimtab.cli.lazy import LazyGroup

_COMMANDS = {name: f"trimtab.cli.dev_{name}" for name in ("cluster", "preempt", "up")}

data_folder_option = click.option(
    "--data-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab/cluster"),
    show_default=True,
    help="Where the cluster's state lives; start again with the same folder to find your objects.",
)


@click.command(cls=LazyGroup, modules=_COMMANDS)
def dev() -> None:
    """Development servers on this machine."""


def told_to_stop() -> threading.Event:
    """Set by Ctrl-C and by SIGTERM."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    return stop
