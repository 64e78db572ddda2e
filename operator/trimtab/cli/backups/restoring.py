"""A backup as the state folder of `trimtab run`: made beside it, with servers that run for as long as that takes, and
under its name once it is whole.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import msgspec

from trimtab.cli.backups.contents import (
    KEYS,
    MANIFEST,
    OBJECTS,
    STATE,
    BackupIndex,
    KeyStorage,
    StreamRecord,
    UnusableBackup,
    ledger_key_digest,
)
from trimtab.cli.backups.place import TOLD_FILES
from trimtab.cli.backups.sealing import opened
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.stream_copy import StreamCopy, restore_stream
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.upload import upload
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.signing import InvalidSigningKey, Signer
from trimtab.operator.local.state_files import ATTEMPTS_FILE, LEDGER_KEY_FILE, MANIFEST_FILE, SEED_FILE
from trimtab.operator.pods.job_keys import JobKeys

_UNFINISHED = ".restoring"
_ASIDE = ".before"
_REQUEST_DEADLINE_S = 120.0
_TRANSFER_DEADLINE_S = 3600.0


class NoRoomForIt(Exception):
    """What is to be the state folder holds something already."""


def keys_of(backup: Path, index: BackupIndex, folder: Path, *, passphrase: str | None) -> JobKeys:
    """Those in the backup, or in the folder where the backup has none. They must be the ones that the job has
    signed with: with others its own processes would refuse everything."""
    if index.keys is KeyStorage.ABSENT:
        files = [folder / name for name in (SEED_FILE, LEDGER_KEY_FILE)]
        if not all(file.is_file() for file in files):
            raise UnusableBackup(
                f"the backup was made without keys: put the job's signing seed into {files[0]} and the key of its"
                f" ledger into {files[1]} first"
            )
        seed, ledger = (file.read_text(encoding="utf-8").strip() for file in files)
        keys = JobKeys(signing_seed=seed, ledger_key=ledger)
    else:
        job = f"{index.namespace}/{index.job}"
        body = (backup / KEYS).read_bytes()
        keys = opened(body, storage=index.keys, passphrase=passphrase, job=job)
    try:
        known = Signer(keys.signing_seed).public_text == index.public_key
    except InvalidSigningKey:
        known = False
    if not known:
        raise UnusableBackup("the signing seed is not the one that the job's weights and checkpoints are signed with")
    if ledger_key_digest(keys.ledger_key) != index.ledger_key_digest:
        raise UnusableBackup("the key of the ledger is not the one that its records are signed with")
    return keys


def restore_locally(backup: Path, index: BackupIndex, keys: JobKeys, target: Path) -> None:
    """Raises NoRoomForIt. The target is what it was, or whole; keys that lay in it are never the only ones deleted."""
    there = {entry.name for entry in target.iterdir()} if target.exists() else set()
    if there - {SEED_FILE, LEDGER_KEY_FILE}:
        raise NoRoomForIt(f"{target} is not empty: name a folder that is not there, or move its content away")
    folder = target.with_name(f"{target.name}{_UNFINISHED}")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    try:
        _make(backup, index, keys, folder)
        aside = target.with_name(f"{target.name}{_ASIDE}")
        if target.exists():
            target.replace(aside)
        folder.replace(target)
        # Not before: who is killed here has the keys in both.
        shutil.rmtree(aside, ignore_errors=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make(backup: Path, index: BackupIndex, keys: JobKeys, folder: Path) -> None:
    with EmbeddedNats(folder / "nats", supervise=False) as nats:
        asyncio.run(_restore_streams_here(backup, index, nats.settings))
    with EmbeddedSeaweed(folder / "seaweedfs", supervise=False) as store:
        prefix = f"{index.namespace}/{index.job}"
        asyncio.run(restore_objects(backup, index, store.settings.model_copy(update={"prefix": prefix})))
    for name, key in ((SEED_FILE, keys.signing_seed), (LEDGER_KEY_FILE, keys.ledger_key)):
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(key, encoding="utf-8")
    # A rank may have begun its attempt while the backup was made.
    attempts = {trainer: attempt + 1 for trainer, attempt in index.attempts.items()}
    (folder / ATTEMPTS_FILE).write_text(json.dumps(attempts), encoding="utf-8")
    shutil.copyfile(backup / MANIFEST, folder / MANIFEST_FILE)
    for name in TOLD_FILES:
        if f"{STATE}/{name}" in index.files:
            shutil.copyfile(backup / STATE / name, folder / name)


async def _restore_streams_here(backup: Path, index: BackupIndex, settings: NatsSettings) -> None:
    on_one_server = msgspec.structs.replace(index, streams=tuple(map(_on_one_server, index.streams)))
    async with await Bus.connect(settings, name="trimtab-restore") as bus:
        await restore_streams(bus, backup, on_one_server)


def _on_one_server(record: StreamRecord) -> StreamRecord:
    config = {name: value for name, value in record.config.items() if name != "placement"}
    return msgspec.structs.replace(record, config={**config, "num_replicas": 1})


async def restore_streams(bus: Bus, backup: Path, index: BackupIndex) -> None:
    for record in index.streams:
        copy = StreamCopy(config=record.config, state=record.state)
        await restore_stream(bus, copy, backup / record.file, deadline_s=_REQUEST_DEADLINE_S)


async def restore_objects(backup: Path, index: BackupIndex, settings: ObjectStoreSettings) -> None:
    """Below the prefix in the settings."""
    async with ObjectStore(settings) as store:
        for name in index.files:
            if name.startswith(f"{OBJECTS}/"):
                key = name.removeprefix(f"{OBJECTS}/")
                await upload(store, key, backup / name, deadline_s=_TRANSFER_DEADLINE_S)
