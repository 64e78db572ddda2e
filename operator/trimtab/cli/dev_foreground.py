"""What `trimtab dev cluster` and `trimtab dev up` share: where the state lives, and running until Ctrl-C."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

data_folder_option = click.option(
    "--data-folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(".trimtab/cluster"),
    show_default=True,
    help="Where the cluster's state lives; start again with the same folder to find your objects.",
)


def told_to_stop() -> threading.Event:
    """Set by Ctrl-C and by SIGTERM."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stop.set())
    return stop
