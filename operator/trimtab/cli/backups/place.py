"""Where a job is that is to be backed up: in the state folder of `trimtab run`, running or not, or in a cluster, found
as the other commands find it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import yaml
from pydantic import BaseModel

from trimtab.api.job import RLJob
from trimtab.api.validation import parse
from trimtab.cli.chronicle.file import FILE_NAME as CHRONICLE_FILE
from trimtab.cli.job_account import AccountsKey, JobUnknown, administrators_credentials
from trimtab.cli.job_bucket import left_environment
from trimtab.cli.state_folder import StateFolderInUse, held
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.pod import read_job
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, WeightSettings, load_settings
from trimtab.kube.access import AccessError, load_access
from trimtab.kube.client import KubeClient
from trimtab.kube.errors import KubeError
from trimtab.kube.resources import RLJOBS, SECRETS, TRAINERS, Object
from trimtab.operator.local.objects import read_attempts
from trimtab.operator.local.state_files import (
    ATTEMPTS_FILE,
    LEDGER_KEY_FILE,
    MANIFEST_FILE,
    SEED_FILE,
    SUCCEEDED_FILE,
)
from trimtab.operator.pods.credentials import job_prefix, kept_keys, secret_name
from trimtab.operator.pods.job_keys import JobKeys

TOLD_FILES = (CHRONICLE_FILE, SUCCEEDED_FILE)
"""What `trimtab run` tells from, besides the streams."""


@dataclass(frozen=True, kw_only=True)
class JobPlace:
    job: RLJob
    manifest: bytes
    nats: NatsSettings
    credentials: MintedCredentials | None = None
    object_store: ObjectStoreSettings
    keys: JobKeys = field(repr=False)
    attempts: Mapping[str, int]
    """By trainer."""
    told: Mapping[str, Path] = field(default_factory=dict)

    @property
    def topology(self) -> JobTopology:
        stages = tuple(stage.name for stage in self.job.spec.stages)
        return JobTopology(self.job.metadata.namespace or "default", self.job.metadata.name, stages=stages)


class _Settings(BaseModel):
    """The part of a pod's or the operator's settings that is needed here."""

    nats: NatsSettings
    object_store: ObjectStoreSettings
    nats_accounts: AccountsKey | None = None
    weights: WeightSettings = WeightSettings()


@contextmanager
def place_of(job: str, *, namespace: str, state_folder: Path | None) -> Iterator[JobPlace]:
    """The servers of a job that has ended run as long as the block. Raises click.ClickException for what is missing."""
    if state_folder is None:
        yield asyncio.run(_in_cluster(job, namespace=namespace))
        return
    try:
        with (
            held(state_folder),
            EmbeddedNats(state_folder / "nats", supervise=False) as nats,
            EmbeddedSeaweed(state_folder / "seaweedfs", supervise=False) as store,
        ):
            yield _local(state_folder, job, nats=nats.settings, store=store.settings)
    except StateFolderInUse:
        found = load_settings(left_environment(state_folder), _Settings)
        yield _local(state_folder, job, nats=found.nats, store=found.object_store)


def _local(folder: Path, name: str, *, nats: NatsSettings, store: ObjectStoreSettings) -> JobPlace:
    file = folder / MANIFEST_FILE
    if not file.is_file():
        raise click.ClickException(
            f"{folder} has no {MANIFEST_FILE}, which `trimtab run` of this version leaves there; run the job once more"
            " with it (one that has succeeded is not trained any further by that)"
        )
    job = read_job(file)
    if job.metadata.name != name:
        raise click.ClickException(f"{folder} is the state folder of job {job.metadata.name}, not of {name}")
    keys = {key: folder / key for key in (SEED_FILE, LEDGER_KEY_FILE)}
    for path in keys.values():
        if not path.is_file():
            raise click.ClickException(f"{path} is missing: the job has never begun, and there is nothing to back up")
    prefix = f"{job.metadata.namespace or 'default'}/{job.metadata.name}"
    return JobPlace(
        job=job,
        manifest=file.read_bytes(),
        nats=nats,
        object_store=store.model_copy(update={"prefix": prefix}),
        keys=JobKeys(
            signing_seed=keys[SEED_FILE].read_text(encoding="utf-8"),
            ledger_key=keys[LEDGER_KEY_FILE].read_text(encoding="utf-8"),
        ),
        attempts=read_attempts(folder / ATTEMPTS_FILE),
        told={name: folder / name for name in TOLD_FILES},
    )


async def _in_cluster(name: str, *, namespace: str) -> JobPlace:
    settings = load_settings(os.environ, _Settings)
    try:
        async with KubeClient(load_access(), user_agent="trimtab") as client:
            found = await client.get_or_none(RLJOBS, name, namespace=namespace)
            if found is None:
                raise JobUnknown(f"there is no job {name} in namespace {namespace}")
            manifest = {
                "apiVersion": found["apiVersion"],
                "kind": found["kind"],
                "metadata": {"name": name, "namespace": namespace},
                "spec": found["spec"],
            }
            job = parse(manifest)
            assert isinstance(job, RLJob)
            secret = await client.get_or_none(SECRETS, secret_name(name), namespace=namespace)
            trainers = {
                f"{name}-{policy.name}": await client.get_or_none(
                    TRAINERS, f"{name}-{policy.name}", namespace=namespace
                )
                for policy in job.spec.learning
            }
    except (AccessError, KubeError) as error:
        raise JobUnknown(f"cannot ask the API server for the job: {error}") from None
    _check_prefix(found, settings.object_store)
    seed, ledger = kept_keys(secret)
    if seed is None or ledger is None:
        raise JobUnknown(
            f"Secret {secret_name(name)} in namespace {namespace} has no keys of the job: it has never begun, or its"
            " Secret was deleted"
        )
    credentials = None
    if settings.nats_accounts is not None:
        credentials = await administrators_credentials(settings.nats_accounts, JobTopology(namespace, name))
    return JobPlace(
        job=job,
        manifest=yaml.safe_dump(manifest, sort_keys=False).encode(),
        nats=settings.nats,
        credentials=credentials,
        object_store=settings.object_store,
        keys=JobKeys(signing_seed=seed, ledger_key=ledger),
        attempts={trainer: _attempt(value) for trainer, value in trainers.items()},
    )


def _attempt(trainer: Object | None) -> int:
    return int(((trainer or {}).get("status") or {}).get("attempt") or 0)


def _check_prefix(job: Object, store: ObjectStoreSettings) -> None:
    """Another job's weights must not get into the backup of this one."""
    own = job_prefix(job, store.model_copy(update={"prefix": ""}))
    if not f"/{store.prefix.strip('/')}".endswith(f"/{own}"):
        raise JobUnknown(
            f"TRIMTAB_OBJECT_STORE__PREFIX: is {store.prefix!r}, and what the job stores is below {own!r} or that after"
            " the operator's own prefix; set it to where the job's pods store"
        )
