"""Reading a job's buckets and streams from a terminal: its NATS server is found as pods find it, or in its state
folder.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic import BaseModel

from trimtab.cli.job_account import AccountsKey, JobUnknown, administrators_credentials
from trimtab.cli.state_folder import StateFolderInUse, held, state_folder_option
from trimtab.embedded.binaries import BinaryMissingError
from trimtab.embedded.nats_server import EmbeddedNats
from trimtab.embedded.server import ServerStartError
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.errors import BusError, BusNotFound
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.keyvalue import Entry, KeyValue
from trimtab.fabric.bus.kv_watch import KvWatch, SnapshotComplete
from trimtab.fabric.bus.topology import BucketSpec, JobTopology
from trimtab.fabric.logs import configure_logs
from trimtab.fabric.settings import LogSettings, NatsSettings, SettingsError, load_settings, secret_values
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.message import Message
from trimtab.operator.local.state_files import ENVIRONMENT_FILE

_DEADLINE_S = 15.0
Command = TypeVar("Command", bound=Callable[..., None])
M = TypeVar("M", bound=Message)
Result = TypeVar("Result")


class BusSettings(BaseModel):
    """The part of a pod's or the operator's settings that is needed here."""

    nats: NatsSettings
    nats_accounts: AccountsKey | None = None


def of_a_job(command: Command) -> Command:
    """What commands that look at a job are given: its name, and where it is."""
    for decorated in (
        state_folder_option,
        click.option("--namespace", default="default", show_default=True, help="Namespace of the RLJob."),
        click.argument("job", metavar="JOB"),
    ):
        command = decorated(command)
    return command


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@contextmanager
def readable_errors() -> Iterator[None]:
    """Whatever is wrong with the settings, the names or the connection ends the command with a message."""
    try:
        yield
    except (SettingsError, BusError, ServerStartError, BinaryMissingError, JobUnknown) as error:
        raise click.ClickException(str(error)) from None


def with_bus(
    work: Callable[[Bus], Coroutine[Any, Any, Result]], topology: JobTopology, *, state_folder: Path | None
) -> Result:
    """Runs a command's work on the job's bus. `state_folder` is that of a job of `trimtab run`, which need not run any
    more.
    """
    with bus_settings(state_folder) as settings:
        configure_logs(
            LogSettings(level="warning", format="console"), stream=sys.stderr, secrets=secret_values(settings)
        )
        return asyncio.run(on_bus(settings, topology, work))


def bucket_entries(topology: JobTopology, bucket: BucketSpec, *, keys: str, state_folder: Path | None) -> list[Entry]:
    """What the bucket holds now under keys that match."""
    return with_bus(lambda bus: entries_on(bus, topology, bucket, keys=keys), topology, state_folder=state_folder)


async def check_stream(bus: Bus, topology: JobTopology, stream: str) -> None:
    """Ends the command when the job has no such stream."""
    try:
        await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=_DEADLINE_S)
    except BusNotFound:
        raise click.ClickException(
            f"there is no job {topology.job} in namespace {topology.namespace} on this NATS server"
        ) from None


def readable_values(entries: Iterable[Entry], kind: type[M]) -> list[M]:
    """What the entries say; one that cannot be read is named, and the others are shown."""
    found = []
    for entry in entries:
        try:
            found.append(decode(entry.value, kind))
        except WireError as error:
            click.echo(f"{entry.key} cannot be shown: {error}", err=True)
    return found


@contextmanager
def bus_settings(state_folder: Path | None) -> Iterator[BusSettings]:
    """How the job's bus is reached. That of a job of `trimtab run` which has ended is started for as long as the block
    runs.
    """
    if state_folder is None:
        yield load_settings(os.environ, BusSettings)
        return
    try:
        with held(state_folder), EmbeddedNats(state_folder / "nats", supervise=False) as server:
            yield BusSettings(nats=server.settings)
    except StateFolderInUse:
        yield load_settings(left_environment(state_folder), BusSettings)


def left_environment(state_folder: Path) -> dict[str, str]:
    """As a running job has left it for people's shells."""
    file = state_folder / ENVIRONMENT_FILE
    if not file.is_file():
        raise click.ClickException(f"the job in {state_folder} is only starting; try again in a moment")
    words = (shlex.split(line) for line in file.read_text(encoding="utf-8").splitlines())
    return dict(word[1].split("=", 1) for word in words if len(word) == 2 and "=" in word[1])


async def on_bus(
    settings: BusSettings, topology: JobTopology, work: Callable[[Bus], Coroutine[Any, Any, Result]]
) -> Result:
    async with await connected(settings, topology) as bus:
        return await work(bus)


async def connected(settings: BusSettings, topology: JobTopology) -> Bus:
    """To be closed by who asked for it."""
    credentials = None
    if settings.nats_accounts is not None:
        credentials = await administrators_credentials(settings.nats_accounts, topology)
    return await Bus.connect(settings.nats, name="trimtab-cli", credentials=credentials)


async def entries_on(bus: Bus, topology: JobTopology, bucket: BucketSpec, *, keys: str) -> list[Entry]:
    await check_stream(bus, topology, bucket.stream)
    found: list[Entry] = []
    async with KvWatch(KeyValue(bus, bucket), keys=keys) as watch:
        while not isinstance(change := await watch.next(deadline_s=_DEADLINE_S), SnapshotComplete):
            if isinstance(change, Entry):
                found.append(change)
    return found
