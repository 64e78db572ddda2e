"""A real server with accounts, jobs on it, and connections of their minted users."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusError, BusTimeout
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.accounts import JOB
from trimtab.fabric.bus.users.mint import AccountMint, MintedUser
from trimtab.fabric.bus.users.registry import forget, register
from trimtab.fabric.settings import NatsSettings

_NO_ANSWER_S = 1.0
_ANSWER_S = 30.0

Attempt = Callable[[], Awaitable[object]]
Attempts = Callable[[Bus, float], Sequence[Attempt]]
"""By whom, and how long each waits for its answer."""


def new_job(namespace: str, *, stages: tuple[str, ...] = ()) -> JobTopology:
    return JobTopology(namespace, f"g{uuid.uuid4().hex[:12]}", stages=stages)


def uid_of(topology: JobTopology) -> str:
    return f"uid-of-{topology.job}"


def settings_of(
    server: EmbeddedNatsWithAccounts, role: str, topology: JobTopology, folder: Path, *, window_s: int | None = None
) -> NatsSettings:
    """What the operator tells a pod of the role, its credentials in a file."""
    mint = server.mint() if window_s is None else server.mint(window_s=window_s)
    user = mint.job_user(role, topology, job_uid=uid_of(topology))
    file = folder / f"{topology.job}-{role}.creds"
    file.write_text(user.credentials)
    return server.address.model_copy(
        update={"credentials_file": file, "inbox_prefix": user.inbox_prefix, "makes_streams": False}
    )


@asynccontextmanager
async def _dialled(server: EmbeddedNatsWithAccounts, user: Callable[[], MintedUser]) -> AsyncIterator[Bus]:
    settings = server.address.model_copy(update={"inbox_prefix": user().inbox_prefix})
    credentials = MintedCredentials(lambda: user().credentials)
    async with await Bus.connect(settings, name=user().name, credentials=credentials) as bus:
        yield bus


def registrars_bus(server: EmbeddedNatsWithAccounts) -> AbstractAsyncContextManager[Bus]:
    return _dialled(server, lambda: server.mint().registrar())


def operator_bus(server: EmbeddedNatsWithAccounts, topology: JobTopology) -> AbstractAsyncContextManager[Bus]:
    """The operator's, in the job's own account."""
    return _dialled(server, lambda: server.mint().keeper(job_uid=uid_of(topology)))


def administrator_of(
    server: EmbeddedNatsWithAccounts, topology: JobTopology, *, account: str = JOB
) -> AbstractAsyncContextManager[Bus]:
    """May do everything to the job's streams, or in another account of the job."""
    return _dialled(server, lambda: server.mint().administrator(job_uid=uid_of(topology), account=account))


async def registered(
    server: EmbeddedNatsWithAccounts, *topologies: JobTopology, mint: AccountMint | None = None
) -> None:
    """The jobs have accounts, and no streams yet."""
    mint = mint or server.mint()
    async with registrars_bus(server) as bus:
        for topology in topologies:
            for token in mint.job_accounts(topology, job_uid=uid_of(topology)):
                await register(bus, token, deadline_s=60.0)


async def forgotten(server: EmbeddedNatsWithAccounts, topology: JobTopology) -> None:
    async with registrars_bus(server) as bus:
        await forget(bus, server.mint().deletion(job_uid=uid_of(topology)), deadline_s=60.0)


async def declared_by_the_operator(server: EmbeddedNatsWithAccounts, *topologies: JobTopology) -> None:
    await registered(server, *topologies)
    for topology in topologies:
        async with operator_bus(server, topology) as bus:
            await declare_job(bus, topology, deadline_s=60.0)
            await declare_consumer(bus, topology.task_consumer(lease_s=600.0), deadline_s=60.0)
            for stage in topology.stages:
                await declare_consumer(bus, topology.stage_consumer(stage, lease_s=600.0), deadline_s=60.0)


def stream_names(topology: JobTopology) -> list[str]:
    return [*(spec.name for spec in topology.streams), *(spec.stream for spec in topology.buckets)]


async def states(bus: Bus, topology: JobTopology) -> dict[str, tuple[int, int]]:
    found = {}
    for name in stream_names(topology):
        state = (await api_call(bus, f"STREAM.INFO.{name}", deadline_s=60.0))["state"]
        found[name] = (state["messages"], state["last_seq"])
    return found


async def refused(attempts: Attempts, *, to: Bus) -> None:
    """The server answers nothing to what is forbidden."""
    outcomes = await asyncio.gather(*(attempt() for attempt in attempts(to, _NO_ANSWER_S)), return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {BusTimeout}, outcomes


async def refused_alone(attempts: Attempts, *, to: Bus, administrator: Bus) -> None:
    """Whoever may do everything does the same and gets an answer, so that nothing passes for forbidden which is merely
    impossible."""
    await refused(attempts, to=to)
    for attempt in attempts(administrator, _ANSWER_S):
        try:
            await attempt()
        except BusTimeout:
            raise
        except BusError:
            continue  # an answer, if not a kind one


def violations(server: EmbeddedNatsWithAccounts) -> list[str]:
    """What the server says that somebody tried and may not."""
    return [line for line in server.log_file.read_text().splitlines() if "Violation" in line]
