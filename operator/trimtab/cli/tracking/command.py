"""`trimtab track FILE`: tell the trackers of a job what they have missed of its run, or go on telling one of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from trimtab.api.manifest import UnreadableManifestError
from trimtab.api.validation import InvalidManifestError
from trimtab.cli.chronicle.file import UnreadableChronicle
from trimtab.cli.tracking.tracker import LibraryMissing, TrackerAway
from trimtab.cli.tracking.trackers import environment_of, follower, problems
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import LogSettings


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Of the run.  [default: .trimtab/JOB beside the manifest]",
)
@click.option("--only", metavar="TYPE", help="This tracker alone.")
@click.option("--follow", is_flag=True, help="Go on telling until SIGTERM; with --only.")
@click.option(
    "--patience", type=float, default=0.0, metavar="SECONDS", help="After SIGTERM, for a tracker that is away."
)
def track(file: Path, state_folder: Path | None, only: str | None, follow: bool, patience: float) -> None:
    """Tell the trackers in spec.tracking of FILE what they have missed of its run here."""
    if follow and only is None:
        raise click.UsageError("--follow goes with --only: trackers that are followed have a process each")
    try:
        job = read_job(file)
    except (InvalidManifestError, UnreadableManifestError, ValueError) as error:
        raise click.ClickException(f"{error}\nrun `trimtab validate {file}` for the full list") from error
    folder = (state_folder or file.parent / ".trimtab" / job.metadata.name).resolve()
    trackers = [tracker for tracker in job.spec.tracking if only in (None, tracker.type)]
    if not trackers:
        raise click.ClickException(f"spec.tracking: {file} names no tracker{f' of type {only}' if only else ''}")
    if wrong := problems(trackers, os.environ):
        raise click.ClickException("\n".join(wrong))
    configure_logs(LogSettings(format="json" if follow else "console"), stream=sys.stderr)
    stopping = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, lambda *_: stopping.set())
    failed = []
    for tracker in trackers:
        os.environ.update(environment_of(tracker, os.environ))
        following = follower(job, tracker, manifest_folder=file.parent, state_folder=folder)
        try:
            if follow:
                all_told = following.follow(stopping, patience_s=patience)
            else:
                while following.tell():
                    pass
                all_told = True
            following.close()
        except (TrackerAway, LibraryMissing, UnreadableChronicle) as error:
            failed.append(f"spec.tracking[{tracker.type}]: {error}")
            continue
        if not all_told:
            failed.append(f"spec.tracking[{tracker.type}]: it was away, and has not been told the end")
        else:
            click.echo(f"{tracker.type} has been told the whole history", err=True)
    if failed:
        raise click.ClickException("\n".join(failed))
