"""Reading a job's buckets from a terminal: its NATS server is found as pods find it, in the environment."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import click
from pydantic import BaseModel

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.settings import LogSettings, NatsSettings, SettingsError, load_settings, secret_values

_DEADLINE_S = 15.0
Command = TypeVar("Command", bound=Callable[..., None])


class _Settings(BaseModel):
    """The part of a pod's settings that is needed here."""

    nats: NatsSettings


def of_a_job(command: Command) -> Command:
    """What commands that look at a running job are given: its name, its namespace, and for whom to print."""
    for decorated in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON for programs."),
        click.option("--namespace", default="default", show_default=True, help="Namespace of the RLJob."),
        click.argument("job", metavar="JOB"),
    ):
        command = decorated(command)
    return command


@contextmanager
def readable_errors() -> Iterator[None]:
    """Whatever is wrong with the settings, the names or the connection ends the command with a message."""
    try:
        yield
    except (SettingsError, BusError) as error:
        raise click.ClickException(str(error)) from None


def bucket_entries(topology: JobTopology, bucket: BucketSpec, *, keys: str) -> list[Entry]:
    """What the bucket holds now under keys that match."""
    settings = load_settings(os.environ, _Settings)
    configure_logs(LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secret_values(settings))
    return asyncio.run(_entries(settings.nats, topology, bucket, keys=keys))


async def _entries(settings: NatsSettings, topology: JobTopology, bucket: BucketSpec, *, keys: str) -> list[Entry]:
    async with await Bus.connect(settings, name="trimtab-cli") as bus:
        try:
            await api_call(bus, f"STREAM.INFO.{bucket.stream}", deadline_s=_DEADLINE_S)
        except BusNotFound:
            raise click.ClickException(
                f"there is no job {topology.job} in namespace {topology.namespace} on this NATS server"
            ) from None
        found: list[Entry] = []
        async with KvWatch(KeyValue(bus, bucket), keys=keys) as watch:
            while not isinstance(change := await watch.next(deadline_s=_DEADLINE_S), SnapshotComplete):
                if isinstance(change, Entry):
                    found.append(change)
    return found
