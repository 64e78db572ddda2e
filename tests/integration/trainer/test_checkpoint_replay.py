"""A genuine checkpoint at the wrong time: the dataflow knows which steps were durable. A trainer that restarts shows
what it has signed, and publishes nothing that was made from an older one before the dataflow goes on with that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from tests.support.polling import within
from tests.support.trainer.batch_server import Answer, BatchServer
from tests.support.trainer.one_trainer import SIGNER, Trainer, announced, saved_step
from tests.support.trainer.storages import PREFIX
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.checkpoint_seal import proven_step
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.signing import Verifier
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.lease import BatchRequest, LeaseAck, LeaseRefused, Refusal
from trimtab.trainer.checkpoints.object_storage import ObjectStorage
from trimtab.trainer.checkpoints.seal import CheckpointRefused
from trimtab.trainer.checkpoints.storage import SeenPointer


class Books:
    """What the dataflow answers of steps that are durable, and what it believes."""

    def __init__(self, server: BatchServer, *, believes: bool) -> None:
        self._server = server
        self._believes = believes
        self._anchored: int | None = None
        server.instead = self.answer
        server.on_proof = self.prove

    def answer(self, request: BatchRequest) -> Answer | None:
        durable = max((ack.step + 1 for ack in self._server.acks), default=0)
        if self._anchored is not None or request.step >= durable:
            return None
        return LeaseRefused(refusal=Refusal.STEP_CONSUMED, message=f"{durable} steps are durable", next_step=durable)

    def prove(self, proof: CheckpointProof) -> LedgerAnchored | LeaseRefused:
        if not self._believes:
            return LeaseRefused(refusal=Refusal.UNPROVEN, message="not signed as it should be")
        verifier = Verifier([SIGNER.public_text])
        self._anchored = proven_step(proof.sealed, job="n/j", policy="solver", verifier=verifier)
        assert self._anchored == proof.step
        return LedgerAnchored(policy="solver", step=proof.step)


@pytest.fixture
async def trained(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> tuple[BatchServer, SeenPointer]:
    """A trainer has done four steps; what it says of its checkpoints, and what it said when there were two."""
    older: list[SeenPointer] = []

    async def keep_the_first(ack: LeaseAck) -> None:
        seen = await ObjectStorage(store, PREFIX).read_pointer()
        assert seen is not None
        older.append(seen)

    server = BatchServer(bus, topology, steps=4)
    server.before_ack = keep_the_first
    async with await server.open():
        await within(asyncio.to_thread(make().run), 60.0)
    assert await saved_step(store) == 4
    return server, older[0]


async def test_a_trainer_whose_newest_checkpoint_is_lost_shows_the_one_before_and_goes_on(
    store: ObjectStore, make: Callable[[], Trainer], trained: tuple[BatchServer, SeenPointer]
) -> None:
    server, older = trained
    storage = ObjectStorage(store, PREFIX)
    await storage.swap_pointer(older.body, seen=await storage.read_pointer())
    assert await saved_step(store) == 2, "genuine, and all its files are kept"
    Books(server, believes=True)
    async with await server.open():
        await within(asyncio.to_thread(make().run), 60.0)
    assert [proof.step for proof in server.proofs] == [2]
    assert await saved_step(store) == 4


async def test_without_the_dataflows_word_nothing_is_published(
    bus: Bus,
    store: ObjectStore,
    topology: JobTopology,
    make: Callable[[], Trainer],
    trained: tuple[BatchServer, SeenPointer],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, older = trained
    monkeypatch.setattr("trimtab.trainer.checkpoints.resume._PROOF_S", 0.0)
    storage, before = ObjectStorage(store, PREFIX), await announced(bus, topology)
    await storage.swap_pointer(older.body, seen=await storage.read_pointer())
    Books(server, believes=False)
    async with await server.open():
        with pytest.raises(
            CheckpointRefused, match="4 steps are durable, and the dataflow does not believe"
        ) as refused:
            await within(asyncio.to_thread(make().run), 60.0)
    assert "bring it back from a copy" in str(refused.value)
    assert await announced(bus, topology) == before


@pytest.mark.slow
async def test_a_trainer_without_any_checkpoint_has_nothing_to_show(
    bus: Bus,
    store: ObjectStore,
    topology: JobTopology,
    make: Callable[[], Trainer],
    trained: tuple[BatchServer, SeenPointer],
) -> None:
    server, _ = trained
    before = await announced(bus, topology)
    await store.delete(f"{PREFIX}/latest.json")
    Books(server, believes=True)
    async with await server.open():
        with pytest.raises(CheckpointRefused, match="no checkpoint, but 4 steps are durable"):
            await within(asyncio.to_thread(make().run), 60.0)
    assert server.proofs == []
    assert await announced(bus, topology) == before
