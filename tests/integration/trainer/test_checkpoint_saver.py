"""Checkpoints that take their time: training goes on, and nothing is acknowledged before it is durable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from tests.support.polling import eventually, within
from tests.support.trainer.batch_server import NOT_READY, BatchServer
from tests.support.trainer.one_trainer import Parts, Trainer, eventually_while, saved_step
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreRefused
from trimtab.fabric.objects.upload import PartSource
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.saver import CheckpointFailed


class SlowStorage:
    """Files of checkpoints are written only once it is opened; `begun` counts those that came."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.begun = 0

    def open(self, store: ObjectStore, prefix: str) -> ObjectStorage:
        storage = self

        class SlowStorage(ObjectStorage):
            async def write(self, name: str, source: PartSource) -> None:
                storage.begun += 1
                await eventually(storage.opened.is_set, timeout_s=60.0)
                await super().write(name, source)

        return SlowStorage(store, prefix)


class RefusingStorage(ObjectStorage):
    async def write(self, name: str, source: PartSource) -> None:
        raise StoreRefused("the bucket is gone")


async def test_training_goes_on_while_a_checkpoint_is_under_way_and_the_next_is_put_off(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=9)
    batch_server.instead = lambda request: NOT_READY if request.step == 7 and not storage.opened.is_set() else None
    storage = SlowStorage()
    trainer = make(parts=Parts(storage=storage.open))
    async with await batch_server.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        # Due at steps 2, 4 and 6; the first has not got anywhere when the seventh is made.
        await eventually_while(
            run, lambda: any(request.trained == 7 for request in batch_server.requests), timeout_s=30.0
        )
        assert storage.begun == 1
        assert batch_server.acks == []
        assert await saved_step(store) is None
        storage.opened.set()
        await within(run, 30.0)
    assert batch_server.acks[0].step == 1
    # Those that were put off are one, at the next step.
    assert batch_server.acks[-1].step in (7, 8)
    assert await saved_step(store) == batch_server.acks[-1].step + 1


async def test_told_to_stop_while_a_checkpoint_is_under_way_it_ends_that_and_writes_another(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=9)
    batch_server.instead = lambda request: NOT_READY if request.step == 3 else None
    storage = SlowStorage()
    trainer = make(parts=Parts(storage=storage.open))
    async with await batch_server.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        await eventually_while(
            run,
            lambda: storage.begun == 1 and any(request.trained == 3 for request in batch_server.requests),
            timeout_s=30.0,
        )
        trainer.stop.set()
        storage.opened.set()
        await within(run, 20.0)
    assert [ack.step for ack in batch_server.acks] == [1, 2]
    assert await saved_step(store) == 3


async def test_a_checkpoint_that_fails_ends_training_also_while_it_waits_for_rows(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=9)
    batch_server.instead = lambda request: NOT_READY if request.step == 2 else None
    trainer = make(parts=Parts(storage=RefusingStorage))
    async with await batch_server.open():
        with pytest.raises(CheckpointFailed, match="checkpoint 2 could not be written: the bucket is gone"):
            await within(asyncio.to_thread(trainer.run), 30.0)
    assert batch_server.acks == []
    assert await saved_step(store) is None
