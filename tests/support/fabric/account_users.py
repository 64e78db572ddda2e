"""A real server with an account, two jobs on it, and connections of their minted users."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from trimtab.embedded.nats_account import EmbeddedNatsWithAccount
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusError, BusTimeout
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.mint import OPERATOR_INBOX
from trimtab.fabric.settings import NatsSettings

_NO_ANSWER_S = 1.0
_ANSWER_S = 30.0

Attempt = Callable[[], Awaitable[object]]
Attempts = Callable[[Bus, float], Sequence[Attempt]]
"""By whom, and how long each waits for its answer."""


def new_job(namespace: str) -> JobTopology:
    return JobTopology(namespace, f"g{uuid.uuid4().hex[:12]}")


def settings_of(
    server: EmbeddedNatsWithAccount, role: str, topology: JobTopology, folder: Path, *, window_s: int | None = None
) -> NatsSettings:
    """What the operator tells a pod of the role, its credentials in a file."""
    mint = server.mint() if window_s is None else server.mint(window_s=window_s)
    user = mint.job_user(role, topology, job_uid=f"uid-of-{topology.job}")
    file = folder / f"{topology.job}-{role}.creds"
    file.write_text(user.credentials)
    return server.address.model_copy(
        update={"credentials_file": file, "inbox_prefix": user.inbox_prefix, "makes_streams": False}
    )


@asynccontextmanager
async def operator_bus(server: EmbeddedNatsWithAccount) -> AsyncIterator[Bus]:
    settings = server.address.model_copy(update={"inbox_prefix": OPERATOR_INBOX})
    credentials = MintedCredentials(lambda: server.mint().operator_user().credentials)
    async with await Bus.connect(settings, name="operator", credentials=credentials) as bus:
        yield bus


async def declared_by_the_operator(server: EmbeddedNatsWithAccount, *topologies: JobTopology) -> None:
    async with operator_bus(server) as bus:
        for topology in topologies:
            await declare_job(bus, topology, deadline_s=60.0)
            await declare_consumer(bus, topology.task_consumer(lease_s=600.0), deadline_s=60.0)


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


def violations(server: EmbeddedNatsWithAccount) -> list[str]:
    """What the server says that somebody tried and may not."""
    return [line for line in server.log_file.read_text().splitlines() if "Violation" in line]
