"""The hostile team, with everything that it can have: its own namespace, and the credentials of its own job for every
role. It goes for the other team's streams and objects, fills what is its own, and writes nonsense to the API server.
"""

from __future__ import annotations

import asyncio
import base64
import multiprocessing
import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import msgspec
from botocore.exceptions import BotoCoreError, ClientError

from benchmarks.tenancy.site import BAD, GOOD, TwoTeams
from tests.support.fabric.scan.attempts import on_batches, on_streams
from tests.support.fabric.scan.scanner import tried
from tests.support.fabric.scan.targets import targets_of
from tests.support.operator.hostile_writes import random_write
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.credentials import MintedCredentials
from trimtab.fabric.bus.errors import BusError
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.bus.users.accounts import ROLE_ACCOUNTS
from trimtab.fabric.objects.aws import aws_client
from trimtab.fabric.objects.credentials import StoreCredentials
from trimtab.kube.client import KubeClient

_THEIRS, _OURS = JobTopology(GOOD, GOOD), JobTopology(BAD, BAD)
_FLOOD_BYTES = 64 * 1024
_PAUSE_S = 1.0
"""Between attacks of one kind: what is measured is isolation, and not who gets two cores, which here all servers share
with the other team's job.
"""
_CALL_S = 60.0
_NICE = 19
_FORKED = multiprocessing.get_context("fork")


@contextmanager
def under_attack(attacker: Attacker, seconds: float) -> Iterator[None]:
    """In a process of its own, which has what others leave of the processors: a team attacks with its own machines."""
    receiving, sending = _FORKED.Pipe(duplex=False)
    process = _FORKED.Process(target=_attack, args=(attacker, seconds, sending))
    process.start()
    try:
        yield
        if not receiving.poll(seconds + _CALL_S):
            raise RuntimeError("the attack has not ended")
        tries, worked = receiving.recv()
        attacker.tries.update(tries)
        attacker.worked |= worked
    finally:
        process.kill()
        process.join()


def _attack(attacker: Attacker, seconds: float, sending: Connection) -> None:
    os.nice(_NICE)
    attacker.tries.clear()
    asyncio.run(attacker.attack(seconds))
    sending.send((attacker.tries, attacker.worked))


@dataclass
class Attacker:
    teams: TwoTeams
    tries: Counter[str] = field(default_factory=Counter)
    worked: set[str] = field(default_factory=set)
    """Of what must not: empty, or the boundary is open."""

    async def attack(self, seconds: float) -> None:
        secret = {name: base64.b64decode(value).decode() for name, value in self.teams.stolen().items()}
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(KubeClient(self.teams.bad.access, user_agent="hostile"))
            loops = [self._spoil_objects(client, random.Random(7))]
            for role in ROLE_ACCOUNTS:
                bus, inbox = await self._dialled(role, secret[f"nats-credentials-{role}"], stack)
                loops += [self._try_streams(role, bus, inbox), self._flood(role, bus)]
                keys = msgspec.json.decode(secret[f"object-store-credentials-{role}"], type=StoreCredentials)
                loops.append(self._try_objects(role, keys))
            tasks = [asyncio.create_task(loop) for loop in loops]
            done, rest = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)
            for task in done:
                task.result()

    async def _dialled(self, role: str, credentials: str, stack: AsyncExitStack) -> tuple[Bus, str]:
        """As a pod of the role does."""
        teams = self.teams
        user = teams.nats.mint().job_user(role, _OURS, job_uid=teams.uid(teams.bad, BAD))
        settings = teams.nats.address.model_copy(update={"inbox_prefix": user.inbox_prefix})
        bus = await Bus.connect(settings, name=role, credentials=MintedCredentials(lambda: credentials))
        return await stack.enter_async_context(bus), user.inbox_prefix

    async def _try_streams(self, role: str, bus: Bus, inbox: str) -> None:
        attempts = [*on_streams(targets_of(_THEIRS)), *on_batches(_THEIRS)]
        # Answers of the server about streams of ours, to subjects of theirs.
        replies = [target.subject for target in targets_of(_THEIRS)]
        while True:
            self.tries[f"{role}: streams"] += len(attempts)
            self.worked |= {f"{role}: {what}" for what in await tried(bus, inbox, attempts, others=())}
            for reply in replies:
                await bus.send(f"$JS.API.STREAM.INFO.{_OURS.tasks.name}", b"", reply=reply)
                self.tries[f"{role}: replies"] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _flood(self, role: str, bus: Bus) -> None:
        """Until its own account is full, and then on."""
        payload = random.Random(1).randbytes(_FLOOD_BYTES)
        while True:
            for target in targets_of(_OURS):
                try:
                    async with asyncio.timeout(_CALL_S):
                        await bus.send(target.subject, payload)
                except BusError:
                    continue
                self.tries[f"{role}: flood"] += 1
            await asyncio.sleep(_PAUSE_S)

    async def _try_objects(self, role: str, keys: StoreCredentials) -> None:
        store = self.teams.store.settings
        client = aws_client("s3", store, keys)
        prefix = f"{GOOD}/{GOOD}-{self.teams.uid(self.teams.good, GOOD)[:8]}"
        place = {"Bucket": store.bucket, "Key": f"{prefix}/weights/solver/latest"}
        calls: dict[str, Any] = {
            "list": lambda: client.list_objects_v2(Bucket=store.bucket, Prefix=prefix),
            "read": lambda: client.get_object(**place),
            "write": lambda: client.put_object(**place, Body=b"stolen"),
            "delete": lambda: client.delete_object(**place),
        }
        while True:
            for name, call in calls.items():
                self.tries[f"{role}: objects"] += 1
                try:
                    async with asyncio.timeout(_CALL_S):
                        await asyncio.to_thread(call)
                except (ClientError, BotoCoreError):
                    continue
                self.worked.add(f"{role}: {name} objects")
            await asyncio.sleep(_PAUSE_S)

    async def _spoil_objects(self, client: KubeClient, rng: random.Random) -> None:
        while True:
            async with asyncio.timeout(_CALL_S):
                self.tries[f"API server: {await random_write(client, rng, BAD)}"] += 1
            await asyncio.sleep(_PAUSE_S)
