"""`trimtab restore FOLDER`: a job from its backup, as a state folder with which `trimtab run` goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trimtab.cli.backups.contents import UnusableBackup
from trimtab.cli.backups.folder import checked
from trimtab.cli.backups.restoring import NoRoomForIt, keys_of, restore_locally
from trimtab.cli.backups.sealing import WrongPassphrase, passphrase_in
from trimtab.cli.job_bucket import readable_errors
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.settings import LogSettings
from trimtab.operator.local.state_files import MANIFEST_FILE


@click.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="To be made: a folder that is not there, or empty.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The passphrase that the backup was made with, in the first line of this file.",
)
def restore(folder: Path, state_folder: Path, passphrase_file: Path | None) -> None:
    """Make the job in FOLDER anew, as it was when `trimtab backup` copied it.

    All of the backup is checked before anything is made of it.
    """
    backup, target = folder.resolve(), state_folder.resolve()
    try:
        passphrase = None if passphrase_file is None else passphrase_in(passphrase_file)
        index = checked(backup)
        keys = keys_of(backup, index, target, passphrase=passphrase)
        secrets = (keys.signing_seed, keys.ledger_key)
        configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secrets)
        with readable_errors():
            restore_locally(backup, index, keys, target)
    except (UnusableBackup, WrongPassphrase, NoRoomForIt, ObjectStoreError, OSError) as error:
        raise click.ClickException(f"{error}\nnothing was restored") from None
    steps = ", ".join(f"{policy} at step {step}" for policy, step in index.steps.items())
    click.echo(f"{index.job} is in {target}{f', {steps}' if steps else ''}")
    click.echo(f"go on with: trimtab run FILE --state-folder {target}")
    click.echo(f"FILE is the job's manifest, with its model and prompts beside it; as it was: {target / MANIFEST_FILE}")
