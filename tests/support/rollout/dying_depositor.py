"""A worker that is killed after a row is in object storage and before its claim is in the stream."""

from __future__ import annotations

import asyncio
import os
import signal

from tests.support.rollout.huge_rows import Huge
from tests.support.rollout.job import Job, working
from tests.support.rollout.speakers import EchoSampler, role
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.row_claims import RowClaims
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings
from trimtab.fabric.wire.claim import ClaimCheck
from trimtab.fabric.wire.trajectory import Trajectory

_FOREVER_S = 600.0


class DyingClaims(RowClaims):
    async def deposit(self, trajectory: Trajectory, frame: bytes) -> ClaimCheck:
        await super().deposit(trajectory, frame)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("dead")


def prepare() -> None:
    """What takes time to import is imported."""


def work_until_killed(nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology) -> None:
    asyncio.run(_work(nats, objects, topology))


async def _work(nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology) -> None:
    async with await Bus.connect(nats, name="dying") as bus, ObjectStore(objects) as store:
        workflow = Huge(tokens=bus.max_payload // 3)
        worker = Job(bus, topology).worker(workflow, {"solver": role(EchoSampler())}, claims=DyingClaims(store))
        async with working(worker):
            await asyncio.sleep(_FOREVER_S)
