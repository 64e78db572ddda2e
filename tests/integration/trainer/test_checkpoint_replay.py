"""A genuine checkpoint at the wrong time: the dataflow knows which steps were durable, so a trainer that restarts
publishes nothing that was made from an older one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.polling import within
from tests.support.trainer.batch_server import Answer, BatchServer
from tests.support.trainer.one_trainer import Trainer, announced, saved_step
from tests.support.trainer.storages import PREFIX
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.wire.lease import BatchRequest, LeaseAck, LeaseRefused, Refusal
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import CheckpointRefused
from trimtab.trainer.checkpoints.storage import SeenPointer


class Books:
    """What the dataflow answers of steps that are durable."""

    def __init__(self, server: BatchServer) -> None:
        self._server = server
        server.instead = self.answer

    def answer(self, request: BatchRequest) -> Answer | None:
        durable = max((ack.step + 1 for ack in self._server.acks), default=0)
        if request.step >= durable:
            return None
        return LeaseRefused(refusal=Refusal.STEP_CONSUMED, message="it is durable", next_step=durable)


@pytest.mark.parametrize("how", ["an older one is put back", "it is deleted"])
async def test_a_pointer_that_went_back_is_refused_before_anything_is_published(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer], how: str
) -> None:
    storage = ObjectStorage(store, PREFIX)
    older: list[SeenPointer] = []

    async def keep_the_first(ack: LeaseAck) -> None:
        seen = await storage.read_pointer()
        assert seen is not None
        older.append(seen)

    server = BatchServer(bus, topology, steps=4)
    server.before_ack = keep_the_first
    Books(server)
    async with await server.open():
        await within(asyncio.to_thread(make().run), 60.0)
        before = await announced(bus, topology)
        assert await saved_step(store) == 4
        if how == "it is deleted":
            await store.delete(f"{PREFIX}/latest.json")
        else:
            await storage.swap_pointer(older[0].body, seen=await storage.read_pointer())
            assert await saved_step(store) == 2, "genuine, and all its files are kept"
        with pytest.raises(CheckpointRefused, match="4 steps were durable") as refused:
            await within(asyncio.to_thread(make().run), 60.0)
        assert "bring it back from a copy" in str(refused.value)
        assert await announced(bus, topology) == before
