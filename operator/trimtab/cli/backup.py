"""`trimtab backup JOB FOLDER`: what a job needs to go on after all else of it is lost."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click
from rich.filesize import decimal

from trimtab.cli.backups.contents import BackupIndex, KeyStorage
from trimtab.cli.backups.filling import KeyChoice, NotBackedUp, fill
from trimtab.cli.backups.folder import NewBackup, new_backup
from trimtab.cli.backups.place import JobPlace, place_of
from trimtab.cli.backups.sealing import WrongPassphrase, passphrase_in
from trimtab.cli.job_bucket import of_a_job, readable_errors
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.settings import LogSettings, secret_values
from trimtab.trainer.checkpoints.index import CheckpointDamaged

_KEYS = "--passphrase-file FILE, --plain-keys or --no-keys"


@click.command()
@of_a_job
@click.argument("folder", metavar="FOLDER", type=click.Path(path_type=Path))
@click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the job's keys into the backup, under the passphrase in the first line of this file.",
)
@click.option("--plain-keys", is_flag=True, help="Put the job's keys into the backup as they are.")
@click.option("--no-keys", is_flag=True, help="Leave the keys out: they are kept elsewhere.")
def backup(
    job: str,
    namespace: str,
    state_folder: Path | None,
    folder: Path,
    passphrase_file: Path | None,
    plain_keys: bool,
    no_keys: bool,
) -> None:
    """Copy JOB into FOLDER, running or not: ledger, rows, newest checkpoints, weights and manifest.

    Reads TRIMTAB_NATS__… and TRIMTAB_OBJECT_STORE__… like pods do, and the API server; for a job of `trimtab run`, give
    its --state-folder. `trimtab restore` makes the job anew.
    """
    choice = _choice(passphrase_file, plain=plain_keys, absent=no_keys)
    target = folder.resolve()
    if target.exists():
        raise click.ClickException(f"{target} is there already: name a folder that is not; no backup is overwritten")
    with readable_errors(), place_of(job, namespace=namespace, state_folder=state_folder) as place:
        secrets = (*secret_values(place.nats), *secret_values(place.object_store))
        keys = (place.keys.signing_seed, place.keys.ledger_key)
        configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=(*secrets, *keys))
        try:
            with new_backup(target) as made:
                index = asyncio.run(_filled(made, place, choice))
        except (NotBackedUp, CheckpointDamaged, ObjectStoreError, OSError) as error:
            raise click.ClickException(f"{error}\nno backup was made") from None
    _tell(target, index)


def _choice(passphrase_file: Path | None, *, plain: bool, absent: bool) -> KeyChoice:
    if sum((passphrase_file is not None, plain, absent)) != 1:
        raise click.ClickException(
            f"choose one of {_KEYS}: whoever has a job's keys can sign weights in its name, so a backup has them only"
            " as it is told to"
        )
    if passphrase_file is None:
        return KeyChoice(storage=KeyStorage.PLAIN if plain else KeyStorage.ABSENT)
    try:
        return KeyChoice(storage=KeyStorage.SEALED, passphrase=passphrase_in(passphrase_file))
    except (WrongPassphrase, OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"--passphrase-file: {error}") from None


async def _filled(made: NewBackup, place: JobPlace, choice: KeyChoice) -> BackupIndex:
    index = await fill(made, place, choice, now=time.time())
    await asyncio.to_thread(made.finish, index)
    return index


def _tell(target: Path, index: BackupIndex) -> None:
    size = sum(record.size for record in index.files.values())
    steps = ", ".join(f"{policy} at step {step}" for policy, step in index.steps.items())
    click.echo(f"{target}: {decimal(size)}, {steps or 'no checkpoint in the store of the job'}")
    if index.keys is KeyStorage.ABSENT:
        click.echo(
            "without keys: keep signing seed and ledger key of the job elsewhere, or nothing can be restored from it",
            err=True,
        )
