"""`trimtab restore FOLDER`: a job from its backup, as a state folder for `trimtab run`, or in a cluster."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from trimtab.cli.backups.cluster import JobThere, restore_in_cluster
from trimtab.cli.backups.contents import BackupIndex, KeyStorage, UnusableBackup
from trimtab.cli.backups.folder import checked
from trimtab.cli.backups.restoring import NoRoomForIt, keys_of, restore_locally
from trimtab.cli.backups.sealing import WrongPassphrase, passphrase_in
from trimtab.cli.job_bucket import readable_errors
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.objects.errors import ObjectStoreError
from trimtab.fabric.settings import LogSettings, SettingsError
from trimtab.kube.access import AccessError
from trimtab.kube.errors import KubeError
from trimtab.operator.local.state_files import MANIFEST_FILE
from trimtab.operator.own_secrets import SecretUnusable
from trimtab.operator.pods.job_keys import JobKeys
from trimtab.operator.reconcile.ownership import NameBusy, Objected

_WHILE_RESTORING = (
    AccessError,
    KubeError,
    NameBusy,
    Objected,
    SecretUnusable,
    SettingsError,
    BusError,
    ObjectStoreError,
    OSError,
)


@click.command()
@click.argument("folder", metavar="FOLDER", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--state-folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="To be made: a folder that is not there, or empty.",
)
@click.option(
    "--cluster", is_flag=True, help="Into the cluster instead, under the name and in the namespace that it had."
)
@click.option(
    "--keys-folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="With --cluster and a backup without keys: has the files signing-seed and ledger-key.",
)
@click.option(
    "--passphrase-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The passphrase that the backup was made with, in the first line of this file.",
)
def restore(
    folder: Path, state_folder: Path | None, cluster: bool, keys_folder: Path | None, passphrase_file: Path | None
) -> None:
    """Make the job in FOLDER anew, as it was when `trimtab backup` copied it.

    All of the backup is checked before anything is made of it. With --cluster it reads TRIMTAB_NATS__…,
    TRIMTAB_NATS_ACCOUNTS__… and TRIMTAB_OBJECT_STORE__… as the operator does, and the kubeconfig.
    """
    if (state_folder is not None) == cluster:
        raise click.ClickException("choose one of --state-folder DIR, for this machine, and --cluster")
    if keys_folder is not None and not cluster:
        raise click.ClickException("--keys-folder goes with --cluster; the keys lie in the state folder otherwise")
    backup = folder.resolve()
    try:
        passphrase = None if passphrase_file is None else passphrase_in(passphrase_file)
        index = checked(backup)
        if state_folder is not None:
            _restore_here(backup, index, state_folder.resolve(), passphrase)
        else:
            _restore_in_cluster(backup, index, keys_folder, passphrase)
    except (UnusableBackup, WrongPassphrase, NoRoomForIt, JobThere) as error:
        raise click.ClickException(f"{error}\nnothing was restored") from None


def _restore_here(backup: Path, index: BackupIndex, target: Path, passphrase: str | None) -> None:
    keys = keys_of(backup, index, target, passphrase=passphrase)
    _hide(keys)
    try:
        with readable_errors():
            restore_locally(backup, index, keys, target)
    except (ObjectStoreError, OSError) as error:
        raise click.ClickException(f"{error}\nnothing was restored") from None
    click.echo(f"{index.job} is in {target}{_steps(index)}")
    click.echo(f"go on with: trimtab run FILE --state-folder {target}")
    click.echo(f"FILE is the job's manifest, with its model and prompts beside it; as it was: {target / MANIFEST_FILE}")


def _restore_in_cluster(backup: Path, index: BackupIndex, keys_folder: Path | None, passphrase: str | None) -> None:
    if index.keys is KeyStorage.ABSENT and keys_folder is None:
        raise UnusableBackup(
            "the backup was made without keys: name a folder with the job's signing-seed and ledger-key with"
            " --keys-folder"
        )
    keys = keys_of(backup, index, keys_folder or backup, passphrase=passphrase)
    _hide(keys)
    name = f"{index.job} of namespace {index.namespace}"
    try:
        prefix = asyncio.run(restore_in_cluster(backup, index, keys))
    except _WHILE_RESTORING as error:
        raise click.ClickException(
            f"{error}\n{name} is not whole: if it is there, it is suspended; delete it and restore it again"
        ) from None
    click.echo(f"{name} is there again{_steps(index)}; its objects are below {prefix}")


def _hide(keys: JobKeys) -> None:
    secrets = (keys.signing_seed, keys.ledger_key)
    configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secrets)


def _steps(index: BackupIndex) -> str:
    steps = ", ".join(f"{policy} at step {step}" for policy, step in index.steps.items())
    return f", {steps}" if steps else ""
