"""A job with accounts of its own on a real server: connections of its roles, which reach its streams by imports, and
connections in the account that has the streams, as all pods had before jobs had accounts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.report import Bar, note, paired_share
from trimtab.embedded.nats_accounts import EmbeddedNatsWithAccounts
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import TASK_CONSUMER, JobTopology
from trimtab.fabric.bus.users.mint import MintedUser
from trimtab.fabric.bus.users.registry import register
from trimtab.fabric.bus.window import WindowedPublisher
from trimtab.fabric.settings import NatsSettings

_DEADLINE_S = 60.0
_MESSAGES = 2000
# About a trajectory of 4096 tokens. A larger message costs more to publish: the server copies it to note its origin.
_MESSAGE_BYTES = 16 * 1024
_WINDOW = 256
_BATCH = 128
_ROUNDS = 11
SHARE = 0.85
"""Isolation may cost 15 %."""


async def admit(server: EmbeddedNatsWithAccounts, topology: JobTopology) -> None:
    """The job has its accounts and streams, as the operator makes them."""
    mint, uid = server.mint(), topology.job
    async with await _dialled(server, mint.registrar()) as registrar:
        for token in mint.job_accounts(topology, job_uid=uid):
            await register(registrar, token, deadline_s=_DEADLINE_S)
    async with await _dialled(server, mint.administrator(job_uid=uid)) as administrator:
        await declare_job(administrator, topology, deadline_s=_DEADLINE_S)
        await declare_consumer(administrator, topology.task_consumer(lease_s=600.0), deadline_s=_DEADLINE_S)


def settings_in(
    server: EmbeddedNatsWithAccounts, topology: JobTopology, *, role: str | None, folder: Path
) -> NatsSettings:
    """Of a pod with the role; None: of one in the account that has the streams."""
    mint, uid = server.mint(), topology.job
    user = mint.administrator(job_uid=uid) if role is None else mint.job_user(role, topology, job_uid=uid)
    file = folder / f"{topology.job}-{role}.creds"
    file.write_text(user.credentials)
    return server.address.model_copy(
        update={"credentials_file": file, "inbox_prefix": user.inbox_prefix, "makes_streams": role is None}
    )


async def measure_isolated_bus(server: EmbeddedNatsWithAccounts) -> tuple[dict[str, object], dict[str, Bar]]:
    """Publishing trajectories, taking tasks and reading rows by number: by import, and without."""
    topology = JobTopology("benchmark", "isolated")
    await admit(server, topology)
    mint, uid = server.mint(), topology.job
    users = {role: mint.job_user(role, topology, job_uid=uid) for role in ("rollout", "trainer")}
    async with (
        await _dialled(server, mint.administrator(job_uid=uid)) as direct,
        await _dialled(server, users["rollout"]) as rollout,
        await _dialled(server, users["trainer"]) as trainer,
    ):
        figures: dict[str, object] = {}
        bars: dict[str, Bar] = {}
        for action, work, isolated in (
            ("publish", _publish, rollout),
            ("pull", _pull, rollout),
            ("read", _read, trainer),
        ):
            rates: dict[str, list[float]] = {"isolated": [], "one_account": []}
            costs: dict[str, list[float]] = {"isolated": [], "one_account": []}
            for turn in range(_ROUNDS + 1):
                contenders = [("isolated", isolated), ("one_account", direct)]
                for name, bus in contenders if turn % 2 == 0 else reversed(contenders):
                    spent = await work(topology, bus, direct, partial(_Spent.so_far, server))
                    if turn:  # the first warms up
                        rates[name].append(_MESSAGES / spent.seconds)
                        costs[name].append(spent.processor_s)
            note(f"isolation, {action}: { {name: [round(one) for one in values] for name, values in rates.items()} }")
            figures |= {f"{name}_{action}_per_s": round(statistics.median(values)) for name, values in rates.items()}
            bars[f"isolated_{action}_processor_time_over_one_account"] = Bar(
                paired_share(costs["isolated"], costs["one_account"]), 2 - SHARE, at_most=True
            )
    return {"message_bytes": _MESSAGE_BYTES, **figures}, bars


@dataclass(frozen=True)
class _Spent:
    """Rates of one connection differ by a third from round to round, with what the scheduler does between two processes
    on two cores; what a message costs client and server together does not.
    """

    seconds: float
    processor_s: float

    @classmethod
    def so_far(cls, server: EmbeddedNatsWithAccounts) -> _Spent:
        threads = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
        of_server_s = sum(int(file.read_text().split()[0]) for file in threads) / 1e9
        return cls(time.perf_counter(), time.process_time() + of_server_s)

    def since(self, before: _Spent) -> _Spent:
        return _Spent(self.seconds - before.seconds, self.processor_s - before.processor_s)


SoFar = Callable[[], _Spent]
Work = Callable[[JobTopology, Bus, Bus, SoFar], Awaitable[_Spent]]


async def _publish(topology: JobTopology, bus: Bus, administrator: Bus, so_far: SoFar) -> _Spent:
    await _emptied(topology.trajectories.name, administrator)
    before = so_far()
    await _fill(bus, topology.trajectory_subject("solver"))
    return so_far().since(before)


async def _pull(topology: JobTopology, bus: Bus, administrator: Bus, so_far: SoFar) -> _Spent:
    await _fill(administrator, topology.task_subject("q"))
    async with await Puller.open(bus, stream=topology.tasks.name, consumer=TASK_CONSUMER) as puller:
        before, taken = so_far(), 0
        while taken < _MESSAGES:
            for delivery in await puller.fetch(batch=_BATCH, wait_s=10.0):
                taken += 1
                await delivery.ack()
        return so_far().since(before)


async def _read(topology: JobTopology, bus: Bus, administrator: Bus, so_far: SoFar) -> _Spent:
    stream = topology.trajectories.name
    first = (await api_call(administrator, f"STREAM.INFO.{stream}", deadline_s=_DEADLINE_S))["state"]["first_seq"]
    before = so_far()
    (await get_messages(bus, stream, range(first, first + _MESSAGES), deadline_s=_DEADLINE_S)).complete()
    return so_far().since(before)


async def _emptied(stream: str, administrator: Bus) -> None:
    await api_call(administrator, f"STREAM.PURGE.{stream}", deadline_s=_DEADLINE_S)


async def _fill(bus: Bus, subject: str) -> None:
    payload, began = b"x" * _MESSAGE_BYTES, time.perf_counter()
    async with WindowedPublisher(bus, max_messages=_WINDOW, max_bytes=64 << 20) as publisher:
        for number in range(_MESSAGES):
            await publisher.publish(subject, payload, message_id=f"{began}-{number}")


async def _dialled(server: EmbeddedNatsWithAccounts, user: MintedUser) -> Bus:
    settings = server.address.model_copy(update={"inbox_prefix": user.inbox_prefix})
    return await Bus.connect(settings, name=user.name, credentials=MintedCredentials(lambda: user.credentials))
