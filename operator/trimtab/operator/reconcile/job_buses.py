"""The operator's connections to the streams of jobs. Where jobs have accounts each has a connection of its own, dialled
when it is first needed and closed with the job; where all pods trust one another one connection serves all jobs.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import Credentials, MintedCredentials
from trimtab.fabric.bus.errors import BusUnauthenticated, BusUnavailable, NoResponders
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.mint import OPERATOR_INBOX, AccountMint
from trimtab.fabric.bus.users.registry import forget, register
from trimtab.fabric.settings import NatsSettings
from trimtab.kube.resources import Key, Object, key_of
from trimtab.operator.stage_names import stage_names

_DEADLINE_S = 10.0
_ROOM_S = 3.0
_DIALS = 8


@dataclass(frozen=True)
class JobIdentity:
    """A job, and not a namesake of it."""

    key: Key
    uid: str
    stages: tuple[str, ...] = ()
    """Names of its stages, which stay as they are."""

    @classmethod
    def of(cls, job: Object) -> JobIdentity:
        """Of an RLJob as the API server has it."""
        return cls(key_of(job), job["metadata"]["uid"], stage_names(job))

    @property
    def topology(self) -> JobTopology:
        return JobTopology(self.key.namespace, self.key.name, stages=self.stages)


class NoRoom(BusUnavailable):
    """The server has not set aside what the job's account may store."""


class JobBuses(Protocol):
    """Everything raises BusError when it cannot be done now."""

    async def ready(self) -> None:
        """There is a server that answers."""

    async def admit(self, job: JobIdentity) -> None:
        """The job's accounts are there, as they should be in the present window."""

    async def bus(self, job: JobIdentity) -> Bus:
        """A connection to the job's streams."""

    async def release(self, job: JobIdentity) -> None:
        """The job needs no connection any more; it may come back."""

    async def forget(self, job: JobIdentity) -> None:
        """The job's accounts are no more, and its pods are cut off."""

    async def close(self) -> None: ...


class SharedBus:
    """One for all jobs, with the settings' user."""

    def __init__(self, settings: NatsSettings) -> None:
        self._settings = settings
        self._bus: Bus | None = None
        self._dialling = asyncio.Lock()

    async def ready(self) -> None:
        async with self._dialling:
            if self._bus is None:
                self._bus = await Bus.connect(self._settings, name="trimtab-operator")

    async def admit(self, job: JobIdentity) -> None:
        return

    async def bus(self, job: JobIdentity) -> Bus:
        await self.ready()
        assert self._bus is not None
        return self._bus

    async def release(self, job: JobIdentity) -> None:
        return

    async def forget(self, job: JobIdentity) -> None:
        return

    async def close(self) -> None:
        if self._bus is not None:
            await self._bus.close()


class AccountBuses:
    """One for each job, with a user of ours in the job's own account, and one by which the server is told of accounts.

    What the server was told is told again in the next window, and after each lost connection: it may have been another
    server that came back.
    """

    def __init__(self, settings: NatsSettings, mint: AccountMint, *, system: Credentials | None) -> None:
        """`system` are the credentials of a user of the server's system account; without, one is minted, which serves a
        server that was set up with the mint's own seed."""
        self._settings = settings.model_copy(update={"inbox_prefix": OPERATOR_INBOX})
        self._mint = mint
        self._system_settings = self._settings if system is None else settings
        self._system_credentials = system or MintedCredentials(lambda: mint.registrar().credentials)
        self._system: Bus | None = None
        self._dialling = asyncio.Lock()
        self._dials = asyncio.Semaphore(_DIALS)
        self._turns: dict[str, asyncio.Lock] = {}
        self._buses: dict[str, Bus] = {}
        self._told: dict[str, tuple[int, int]] = {}

    async def ready(self) -> None:
        await self._connected()

    async def admit(self, job: JobIdentity) -> None:
        system = await self._connected()
        wanted = (self._mint.window, system.epoch)
        if self._told.get(job.uid) == wanted:
            return
        for token in self._mint.job_accounts(job.topology, job_uid=job.uid):
            await register(system, token, deadline_s=_DEADLINE_S)
        self._told[job.uid] = wanted

    async def bus(self, job: JobIdentity) -> Bus:
        async with self._turns.setdefault(job.uid, asyncio.Lock()):
            await self.admit(job)
            bus = self._buses.get(job.uid)
            if bus is None:
                bus = self._buses[job.uid] = await self._dialled(job)
            return bus

    async def release(self, job: JobIdentity) -> None:
        self._turns.pop(job.uid, None)
        bus = self._buses.pop(job.uid, None)
        if bus is not None:
            await bus.close()

    async def forget(self, job: JobIdentity) -> None:
        await self.release(job)
        await forget(await self._connected(), self._mint.deletion(job_uid=job.uid), deadline_s=_DEADLINE_S)
        self._told.pop(job.uid, None)

    async def close(self) -> None:
        buses, self._buses = [*self._buses.values()], {}
        if self._system is not None:
            buses.append(self._system)
        await asyncio.gather(*(bus.close() for bus in buses))

    async def _connected(self) -> Bus:
        async with self._dialling:
            if self._system is None:
                self._system = await self._dialled_system()
        await self._system.wait_connected(deadline_s=_DEADLINE_S)
        return self._system

    async def _dialled_system(self) -> Bus:
        try:
            return await Bus.connect(
                self._system_settings, name="trimtab-registrar", credentials=self._system_credentials
            )
        except BusUnauthenticated as error:
            raise BusUnauthenticated(
                f"{error}; it has to run in operator mode and trust the key in nats_accounts, and"
                " nats_accounts.system_credentials_file has to be a user of its system account"
            ) from None

    async def _dialled(self, job: JobIdentity) -> Bus:
        credentials = MintedCredentials(lambda: self._mint.keeper(job_uid=job.uid).credentials)
        async with self._dials:
            bus = await Bus.connect(self._settings, name="trimtab-operator", credentials=credentials)
        try:
            await self._check_room(bus, job)
        except BaseException:
            await bus.close()
            raise
        return bus

    async def _check_room(self, bus: Bus, job: JobIdentity) -> None:
        """A server that is no cluster takes an account for which it has no room, and gives it no JetStream."""
        try:
            await api_call(bus, "INFO", deadline_s=_ROOM_S)
        except NoResponders as error:
            raise NoRoom(
                f"NATS has no JetStream for job {job.key.name} in namespace {job.key.namespace}: it may store"
                f" {self._mint.storage_bytes} bytes, which the server cannot set aside beside those of other jobs;"
                " lower nats_accounts.limits.storage_bytes, raise the server's max_file_store, or delete jobs that"
                " have ended"
            ) from error
