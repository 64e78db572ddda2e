"""What goes into a backup, in an order in which each part knows no less than those before it: the ledger first, then
what it speaks of, then the checkpoints. Of a job that runs meanwhile the newer parts hold more than the older ones know
of, which is what a power loss leaves as well: such a job gives up what it cannot know, and trains nothing twice.
"""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import dataclass

import msgspec

from trimtab.cli.backups.contents import (
    KEYS,
    MANIFEST,
    OBJECTS,
    STATE,
    STREAMS,
    BackupIndex,
    KeyStorage,
    StreamRecord,
    ledger_key_digest,
)
from trimtab.cli.backups.folder import NewBackup
from trimtab.cli.backups.place import JobPlace
from trimtab.cli.backups.sealing import enclosed
from trimtab.cli.checkpoint_copy import ReplacedTooFast, copy_checkpoint
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.stream_copy import StreamCopy, copy_stream
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.download import DownloadShape, download_to_file
from trimtab.fabric.objects.errors import ObjectNotFound
from trimtab.fabric.objects.pointers import POINTER
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.claim import claims_of
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import SealReader
from trimtab.weights.store.keys import latest_key
from trimtab.weights.store.latest import MAX_POINTER_BYTES, Latest
from trimtab.weights.verification import check_manifests

_REQUEST_DEADLINE_S = 60.0
_TRANSFER_DEADLINE_S = 3600.0
_LARGEST_OBJECT = 5 << 40
_ATTEMPTS = 5
_BACKOFF = FullJitter(base_s=0.5, cap_s=5.0)


class NotBackedUp(Exception):
    """The message says which part of the job could not be had, and what to do."""


@dataclass(frozen=True, kw_only=True)
class KeyChoice:
    storage: KeyStorage
    passphrase: str | None = None


async def fill(backup: NewBackup, place: JobPlace, keys: KeyChoice, *, now: float) -> BackupIndex:
    """What the backup holds then, to be finished with. Raises NotBackedUp."""
    topology = place.topology
    name = f"{topology.namespace}/{topology.job}"
    async with await Bus.connect(place.nats, name="trimtab-backup", credentials=place.credentials) as bus:
        streams = await _streams(bus, topology, backup)
    public_key = Signer(place.keys.signing_seed).public_text
    steps: dict[str, int] = {}
    async with ObjectStore(place.object_store) as store:
        for policy in place.job.spec.learning:
            if policy.trainer.checkpoint.uri is None:
                seal = SealReader(job=name, policy=policy.name, verifier=Verifier([public_key]))
                step = await _checkpoint(store, policy.name, seal, backup)
                steps |= {} if step is None else {policy.name: step}
            await _claims(store, policy.name, backup)
            await _weights(store, policy.name, Verifier([public_key]), backup)
    backup.path(MANIFEST).write_bytes(place.manifest)
    for told, path in place.told.items():
        if path.is_file():
            shutil.copyfile(path, backup.path(f"{STATE}/{told}"))
    if keys.storage is not KeyStorage.ABSENT:
        file = backup.path(KEYS)
        file.touch(mode=0o600)
        file.write_bytes(enclosed(place.keys, passphrase=keys.passphrase, job=name))
    return BackupIndex(
        namespace=topology.namespace,
        job=topology.job,
        made_at=now,
        keys=keys.storage,
        public_key=public_key,
        ledger_key_digest=ledger_key_digest(place.keys.ledger_key),
        attempts=dict(place.attempts),
        steps=steps,
        streams=streams,
        files=await asyncio.to_thread(backup.files),
    )


async def _streams(bus: Bus, topology: JobTopology, backup: NewBackup) -> tuple[StreamRecord, ...]:
    """A queue is read before what its tasks become: whatever is on neither would be lost. A snapshot of the ledger that
    is written meanwhile deletes rows that the copied ledger waits for: then all is copied again."""
    queues = (topology.tasks, topology.stage_tasks, topology.columns) if topology.stages else (topology.tasks,)
    names = [topology.ledger.name, *(spec.name for spec in (*queues, topology.trajectories))]
    names += [bucket.stream for bucket in (topology.weights, topology.balance, topology.quarantine)]
    names.append(topology.hand_backs.stream)
    for attempt in range(_ATTEMPTS):
        copies = [await _stream(bus, name, number, backup) for number, name in enumerate(names)]
        state = (await api_call(bus, f"STREAM.INFO.{names[0]}", deadline_s=_REQUEST_DEADLINE_S))["state"]
        if int(state["first_seq"]) == int(copies[0].state["first_seq"]):
            return tuple(copies)
        await asyncio.sleep(_BACKOFF.delay_s(attempt))
    raise NotBackedUp(
        f"the ledger of {topology.job} is compacted faster than its streams can be copied; suspend the job"
        " (spec.suspend, or Ctrl-C), or make room for its streams, and take the backup then"
    )


async def _stream(bus: Bus, name: str, number: int, backup: NewBackup) -> StreamRecord:
    file = f"{STREAMS}/{number:02d}"
    copy: StreamCopy = await copy_stream(bus, name, backup.path(file), deadline_s=_REQUEST_DEADLINE_S)
    return StreamRecord(file=file, config=copy.config, state=copy.state)


async def _checkpoint(store: ObjectStore, policy: str, seal: SealReader, backup: NewBackup) -> int | None:
    """The newest. The step; None where there is none."""
    folder = f"checkpoints/{policy}"
    try:
        copied = await copy_checkpoint(
            ObjectStorage(store, folder),
            seal,
            lambda name: backup.path(f"{OBJECTS}/{folder}/{name}"),
            choose=lambda committed: committed[0],
        )
    except ReplacedTooFast as error:
        raise NotBackedUp(f"{error} first") from None
    if copied is None:
        return None
    step, pointer = copied
    backup.path(f"{OBJECTS}/{folder}/{POINTER}").write_bytes(pointer)
    return step


async def _claims(store: ObjectStore, policy: str, backup: NewBackup) -> None:
    """Rows too large for a message. What is gone since it was listed is not asked for any more."""
    async for info in store.scan(claims_of(policy)):
        try:
            await _download(store, info.key, backup)
        except ObjectNotFound:
            continue


async def _weights(store: ObjectStore, policy: str, verifier: Verifier, backup: NewBackup) -> None:
    """All that the catalogue leads to. What it no longer names may be collected meanwhile, so it is read again where
    something was missing."""
    problem = ""
    for attempt in range(_ATTEMPTS):
        try:
            pointer = await store.get(latest_key(policy), max_bytes=MAX_POINTER_BYTES, deadline_s=_REQUEST_DEADLINE_S)
        except ObjectNotFound:
            return
        latest = msgspec.json.decode(pointer.body, type=Latest)
        checked = await check_manifests(store, policy, verifier, latest, parallel=4, deadline_s=_REQUEST_DEADLINE_S)
        problem = "; ".join(f"{fault.kind}: {fault.reason}" for fault in checked.faults[:3])
        if not problem:
            try:
                for key in (*(entry.key(policy) for entry in latest.catalogue), *checked.chunks()):
                    await _download(store, key, backup)
            except ObjectNotFound as error:
                problem = str(error)
            else:
                backup.path(f"{OBJECTS}/{latest_key(policy)}").write_bytes(pointer.body)
                return
        await asyncio.sleep(_BACKOFF.delay_s(attempt))
    raise NotBackedUp(f"the weights of {policy} cannot be copied: {problem}; see `trimtab weights verify`")


async def _download(store: ObjectStore, key: str, backup: NewBackup) -> None:
    target = backup.path(f"{OBJECTS}/{key}")
    if not target.exists():
        await download_to_file(
            store, key, target, deadline_s=_TRANSFER_DEADLINE_S, shape=DownloadShape(max_bytes=_LARGEST_OBJECT)
        )
