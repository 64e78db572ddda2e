"""A job's rows as they lie in its stream: the headers of all, and the tokens of those that were chosen."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import click

from trimtab.cli.ended_store import ended_environment
from trimtab.cli.job_bucket import check_stream, left_environment
from trimtab.cli.samples.archive import SampleArchive
from trimtab.cli.samples.choice import StoredRow, with_steps
from trimtab.cli.weights.access import StoreSettings
from trimtab.dataflow.audit.granted_steps import granted_steps
from trimtab.embedded.seaweedfs import EmbeddedSeaweed
from trimtab.embedded.server import DataFolderInUseError
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import ClaimUnusable, RowClaims
from trimtab.fabric.settings import load_settings
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.header import TrajectoryHeader, parse_headers
from trimtab.fabric.wire.trajectory import Trajectory

_HEADERS_AT_ONCE = 512
_ROWS_AT_ONCE = 32
_DEADLINE_S = 60.0

_SETTINGS = "TRIMTAB_OBJECT_STORE__"

Complain = Callable[[str], None]


class JobStore:
    """The job's object storage. Few commands need it, so it is opened for the first that asks; that of a job of
    `trimtab run` which has ended is started. Use it in an `async with` block.
    """

    def __init__(self, state_folder: Path | None) -> None:
        self._state_folder = state_folder
        self._stack = AsyncExitStack()
        self._store: ObjectStore | None = None

    @property
    def is_known(self) -> bool:
        """Whether anybody says where it is."""
        return self._state_folder is not None or any(name.startswith(_SETTINGS) for name in os.environ)

    async def open(self) -> ObjectStore:
        if self._store is None:
            # Starting it takes seconds in which this thread waits, and nobody else has anything to do.
            settings = load_settings(self._environment(), StoreSettings)
            self._store = await self._stack.enter_async_context(ObjectStore(settings.object_store))
        return self._store

    async def redeem(self, claim: ClaimCheck) -> bytes:
        """A row that was too large for a message. Raises ClaimUnusable."""
        return await RowClaims(await self.open()).redeem(claim)

    def _environment(self) -> dict[str, str]:
        if self._state_folder is None:
            return dict(os.environ)
        try:
            server = self._stack.enter_context(EmbeddedSeaweed(self._state_folder / "seaweedfs", supervise=False))
        except DataFolderInUseError:
            return left_environment(self._state_folder)
        return ended_environment(self._state_folder, server.settings)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()


async def stored_rows(bus: Bus, topology: JobTopology, *, complain: Complain) -> list[StoredRow]:
    """All that the stream has now, with the steps that they were trained in."""
    stream = topology.trajectories.name
    await check_stream(bus, topology, stream)
    # A group that a record speaks of has arrived before it.
    steps = await granted_steps(bus, topology)
    found: list[tuple[int, str, TrajectoryHeader]] = []
    async with StreamReader(bus, stream=stream, headers_only=True) as reader:
        while not reader.caught_up:
            for delivery in await reader.read(batch=_HEADERS_AT_ONCE, wait_s=_DEADLINE_S):
                try:
                    found.append((delivery.sequence, *parse_headers(delivery.headers)))
                except WireError as error:
                    complain(f"row {delivery.sequence} cannot be shown: {error}")
    return with_steps(found, steps)


async def trajectories(
    bus: Bus,
    topology: JobTopology,
    rows: Sequence[StoredRow],
    store: JobStore,
    archive: SampleArchive | None,
    *,
    complain: Complain,
) -> AsyncIterator[tuple[StoredRow, Trajectory]]:
    """In the order of `rows`. Those that the job lets go meanwhile, or that cannot be read, are named and left out."""
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        some = rows[start : start + _ROWS_AT_ONCE]
        stored = await get_messages(
            bus,
            topology.trajectories.name,
            [row.sequence for row in some if row.archived_in is None],
            deadline_s=_DEADLINE_S,
        )
        for row in some:
            if archive is not None and row.archived_in is not None:
                if (archived := await archive.trajectory(row)) is not None:
                    yield row, archived
                continue
            message = stored.messages.get(row.sequence)
            if message is None:
                complain(f"row {row.sequence} has been let go meanwhile")
                continue
            try:
                found = decode(message.payload, Trajectory, ClaimCheck)
                payload = await store.redeem(found) if isinstance(found, ClaimCheck) else message.payload
                yield row, decode(payload, Trajectory)
            except (WireError, ClaimUnusable) as error:
                complain(f"row {row.sequence} cannot be shown: {error}")


def complain(text: str) -> None:
    click.echo(text, err=True)
