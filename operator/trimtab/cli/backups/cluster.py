"""A backup as a job of a cluster: suspended while it is made, so that the operator starts nothing of what is there in
part, and as its manifest has it once all of it is there.

Signatures of weights, checkpoints and ledger name the job and its namespace, so it has the name that it had. Its uid is
another one, from which its place in object storage and its accounts of NATS follow.
"""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from trimtab.api import names
from trimtab.api.job import RLJob
from trimtab.api.validation import parse
from trimtab.cli.backups.contents import MANIFEST, BackupIndex
from trimtab.cli.backups.restoring import restore_objects, restore_streams
from trimtab.fabric.backoff import FullJitter
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import CredentialsFile, MintedCredentials
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, load_settings
from trimtab.kube.access import load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import AlreadyExists
from trimtab.kube.resources import RLJOBS, SECRETS, TRAINERS, Object, Resource
from trimtab.operator.nats_accounts import open_mint
from trimtab.operator.plan.children import trainer_of
from trimtab.operator.pods.credentials import job_prefix, keys_secret
from trimtab.operator.pods.job_keys import JobKeys
from trimtab.operator.reconcile.deletion import FINALIZER
from trimtab.operator.reconcile.job_buses import AccountBuses, JobIdentity
from trimtab.operator.reconcile.ownership import NameBusy, create_own
from trimtab.operator.settings import NatsAccountsSettings

_NAME_BUSY_S = 60.0
_NAME_BACKOFF = FullJitter(base_s=0.5, cap_s=5.0)


class JobThere(Exception):
    """The cluster has a job of that name."""


class _Settings(BaseModel):
    """The part of the operator's settings that is needed here."""

    nats: NatsSettings
    nats_accounts: NatsAccountsSettings | None = None
    object_store: ObjectStoreSettings


async def restore_in_cluster(backup: Path, index: BackupIndex, keys: JobKeys) -> str:
    """Where its objects are then. What is left after an error goes when the job is deleted, but for objects. Raises
    JobThere."""
    settings = load_settings(os.environ, _Settings)
    manifest = yaml.safe_load((backup / MANIFEST).read_bytes())
    async with KubeClient(load_access(), user_agent="trimtab") as client:
        job = await _suspended(client, manifest, index)
        uid = job["metadata"]["uid"]
        # With its keys alone: the operator completes it before the first pod.
        await _made(client, SECRETS, keys_secret(job, keys), owner_uid=uid)
        await _restore_trainers(client, job, index)
        await _restore_streams(client, settings, job, backup, index)
        prefix = job_prefix(job, settings.object_store)
        await restore_objects(backup, index, settings.object_store.model_copy(update={"prefix": prefix}))
        suspend = bool(manifest["spec"].get("suspend"))
        await client.patch(RLJOBS, index.job, {"spec": {"suspend": suspend}}, namespace=index.namespace)
        return prefix


async def _suspended(client: KubeClient, manifest: dict[str, Any], index: BackupIndex) -> Object:
    body = {
        "apiVersion": manifest["apiVersion"],
        "kind": manifest["kind"],
        # With it the operator deletes its streams and accounts, should it be deleted before it has run.
        "metadata": {"name": index.job, "namespace": index.namespace, "finalizers": [FINALIZER]},
        "spec": {**_own_beginning(manifest["spec"], index), "suspend": True},
    }
    try:
        made = await client.create(RLJOBS, body, namespace=index.namespace)
    except AlreadyExists:
        raise JobThere(
            f"there is a job {index.job} in namespace {index.namespace}: delete it first; what it has in object storage"
            " stays where it is"
        ) from None
    return {"apiVersion": RLJOBS.api_version, "kind": RLJOBS.kind, **made}


def _own_beginning(spec: dict[str, Any], index: BackupIndex) -> dict[str, Any]:
    """A job that has begun at another's checkpoint goes on from its own, and the other one need not be there."""
    learning = {policy["name"] for policy in spec["policies"] if not policy.get("frozen")}
    return {name: value for name, value in spec.items() if name != "resumeFrom" or not learning <= set(index.steps)}


async def _made(client: KubeClient, resource: Resource, body: Object, *, owner_uid: str) -> None:
    """What the job before had under the name may still be on its way out. Raises NameBusy when it stays."""
    clock = asyncio.get_running_loop().time
    end, attempt = clock() + _NAME_BUSY_S, 0
    while True:
        try:
            await create_own(client, resource, body, owner_uid=owner_uid)
        except NameBusy:
            if clock() >= end:
                raise
            await asyncio.sleep(_NAME_BACKOFF.delay_s(attempt))
            attempt += 1
        else:
            return


async def _restore_trainers(client: KubeClient, job: Object, index: BackupIndex) -> None:
    """The ledger refuses ranks of an attempt that it has seen, and of older ones. A rank may have begun its attempt
    while the backup was made."""
    typed = parse({**job, "metadata": {name: job["metadata"][name] for name in ("name", "namespace")}})
    assert isinstance(typed, RLJob)
    typed = typed.model_copy(update={"metadata": typed.metadata.model_copy(update={"uid": job["metadata"]["uid"]})})
    for policy in typed.spec.learning:
        name = names.trainer_name(index.job, policy.name)
        attempt = index.attempts.get(name, 0) + 1
        body = trainer_of(typed, policy).model_dump(mode="json", by_alias=True, exclude_none=True)
        await _made(client, TRAINERS, body, owner_uid=job["metadata"]["uid"])
        status = {"status": {"attempt": attempt, "startedAttempt": attempt}}
        await client.patch(TRAINERS, name, status, namespace=index.namespace, subresource="status")


async def _restore_streams(
    client: KubeClient, settings: _Settings, job: Object, backup: Path, index: BackupIndex
) -> None:
    async with AsyncExitStack() as stack:
        mint = await open_mint(settings.nats_accounts, client, clock=time.time)
        credentials = None
        if mint is not None and settings.nats_accounts is not None:
            file = settings.nats_accounts.system_credentials_file
            buses = AccountBuses(settings.nats, mint, system=None if file is None else CredentialsFile(file))
            stack.push_async_callback(buses.close)
            await buses.admit(JobIdentity.of(job))
            uid = job["metadata"]["uid"]
            credentials = MintedCredentials(lambda: mint.administrator(job_uid=uid).credentials)
        bus = await Bus.connect(settings.nats, name="trimtab-restore", credentials=credentials)
        stack.push_async_callback(bus.close)
        await restore_streams(bus, backup, index)
