"""The training loop on a real bus and store: acknowledgement, resuming, stopping, fencing, publishing."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import msgspec
import pytest
import torch

from tests.support.polling import within
from tests.support.trainer.batch_server import NOT_READY, Answer, BatchServer
from tests.support.trainer.one_trainer import Parts, Trainer, announced, eventually_while, newest, saved_step
from tests.support.trainer.storages import same, state_of
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.wire.lease import AWAITS_EVALUATION, BatchLease, BatchRequest, LeaseAck, StepTotals
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.trainer.batch import Row
from trimtab.trainer.learner import Learner
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.metrics import StepOutcome
from trimtab.weights.baseline import Captured
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.latest import SupersededTrainer


def poll_until(condition: Callable[[], bool]) -> None:
    """In a thread of its own, where `eventually` cannot be used."""
    end = time.monotonic() + 300.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


async def test_a_step_is_acknowledged_only_when_its_checkpoint_is_there(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=5)

    async def checkpoint_is_there(ack: LeaseAck) -> None:
        assert await saved_step(store) == ack.step + 1

    batch_server.before_ack = checkpoint_is_there

    class UpdatesOnceTheNextIsAskedFor(Learner):
        def update(self, totals: StepTotals) -> StepOutcome:
            poll_until(lambda: any(request.step == self.step + 1 for request in batch_server.requests))
            return super().update(totals)

    trainer = make(parts=Parts(learner=UpdatesOnceTheNextIsAskedFor))
    async with await batch_server.open():
        await within(asyncio.to_thread(trainer.run), 60.0)
    acknowledged = [ack.step for ack in batch_server.acks]
    assert acknowledged[0] == 1
    assert acknowledged[-1] in (3, 4), "the one that was due is finished, whenever it could begin"
    assert acknowledged == sorted(set(acknowledged))
    # One that was not answered by the end of its step is asked for again.
    first = {request.step: request for request in reversed(batch_server.requests)}
    assert sorted(first) == [0, 1, 2, 3, 4, 5]
    ahead = [first[step].trained for step in sorted(first)]
    assert ahead == [0, 0, 1, 2, 3, 4], "each is asked for one step ahead"
    assert [first[step].previous is None for step in sorted(first)] == [True] * 2 + [False] * 4
    assert await saved_step(store) == acknowledged[-1] + 1
    assert (await announced(bus, topology)).version == 5


async def test_what_its_steps_were_like_can_be_read_from_its_metrics(
    bus: Bus, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    trainer = make()
    async with await BatchServer(bus, topology, steps=2).open():
        await within(asyncio.to_thread(trainer.run), 60.0)

    def value(name: str) -> float:
        found = trainer.metrics.registry.get_sample_value(f"trimtab_trainer_{name}")
        assert found is not None, name
        return found

    assert value("step") == 2
    assert value("tokens_total") > 0
    assert value("grad_norm") > 0
    assert value("skipped_steps_total") == 0
    assert value("sampling_drift") > 0
    assert 0 < value("logprob_mismatch") < 20, "the batch_server's logprobs are made up"
    assert 0 <= value("wait_seconds_total") <= value("step_seconds_total")


async def test_a_round_of_evaluation_before_the_first_step_is_no_waiting_for_samples(
    bus: Bus, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    trainer, held_at = make(), list[float]()
    batch_server = BatchServer(bus, topology, steps=2)

    def held(request: BatchRequest) -> Answer | None:
        if len(held_at) == 20:
            return None
        held_at.append(time.monotonic())
        return msgspec.structs.replace(NOT_READY, reason=AWAITS_EVALUATION, retry_after=0.05)

    batch_server.instead = held
    async with await batch_server.open():
        began = time.monotonic()
        await within(asyncio.to_thread(trainer.run), 60.0)
        took = time.monotonic() - began
    steps_s = trainer.metrics.registry.get_sample_value("trimtab_trainer_step_seconds_total")
    waited_s = trainer.metrics.registry.get_sample_value("trimtab_trainer_wait_seconds_total")
    assert steps_s is not None
    assert waited_s is not None
    assert waited_s <= steps_s <= took - (held_at[-1] - held_at[0])


async def test_rows_that_wait_for_the_news_of_a_step_are_asked_for_again_when_it_is_done(
    bus: Bus, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    """As when rollout may be no version behind: the rows of a step exist only after the dataflow knows of the last."""
    batch_server = BatchServer(bus, topology, steps=3)
    batch_server.instead = lambda request: NOT_READY if request.trained_steps < request.step else None
    async with await batch_server.open():
        await within(asyncio.to_thread(make().run), 60.0)
    assert {request.step for request in batch_server.requests if request.trained == request.step} == {0, 1, 2, 3}
    assert {request.step for request in batch_server.requests if request.previous is not None} >= {1, 2, 3}


async def test_a_rank_computes_on_the_portions_that_exist(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    """A step of two rows in two portions: the second one comes only after the first was fetched."""
    batch_server = BatchServer(bus, topology, steps=2)

    def in_portions(request: BatchRequest) -> Answer:
        lease = batch_server.lease(request)
        if not isinstance(lease, BatchLease):
            return lease
        samples = lease.samples[request.chunk : request.chunk + 1]
        return msgspec.structs.replace(
            lease, chunk=request.chunk, samples=samples, totals=lease.totals if request.chunk == 1 else None
        )

    whole, cut = make(), make()
    async with await batch_server.open():
        await within(asyncio.to_thread(whole.run), 60.0)
    batch_server.instead = in_portions
    batch_server.requests.clear()
    async with await batch_server.open():
        await store.delete("checkpoints/solver/latest.json")
        await within(asyncio.to_thread(cut.run), 60.0)
    # One that was not answered in time is asked for again.
    asked = list(dict.fromkeys((request.step, request.chunk) for request in batch_server.requests))
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    for one, other in zip(whole.learner.model.parameters(), cut.learner.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


async def test_after_a_crash_it_repeats_from_the_checkpoint_and_ends_where_it_would_have(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=5)

    class CrashesInStep3(Learner):
        def accumulate(self, rows: Sequence[Row]) -> None:
            if self.step == 3:
                poll_until(lambda: bool(batch_server.acks))
                raise MemoryError("no memory left")
            super().accumulate(rows)

    first, second = make(parts=Parts(learner=CrashesInStep3)), make()
    async with await batch_server.open():
        with pytest.raises(MemoryError):
            await within(asyncio.to_thread(first.run), 60.0)
        assert await saved_step(store) == 2
        batch_server.requests.clear()
        await within(asyncio.to_thread(second.run), 60.0)
    assert min(request.step for request in batch_server.requests) == 2
    whole = make()
    async with await batch_server.open():
        await store.delete("checkpoints/solver/latest.json")
        await within(asyncio.to_thread(whole.run), 60.0)
    assert same(state_of(whole.learner), state_of(second.learner))


@pytest.mark.slow
async def test_a_finished_policy_ends_without_another_checkpoint_when_the_newest_is_recent(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    """Its last weights are published. Were it to start once more, it would repeat the steps since, on the same rows."""
    batch_server = BatchServer(bus, topology, steps=5)
    batch_server.instead = lambda request: NOT_READY if request.step == 3 and not batch_server.acks else None
    first, second = make(every=3), make(every=3)
    async with await batch_server.open():
        await within(asyncio.to_thread(first.run), 60.0)
        assert first.learner.step == 5
        assert [ack.step for ack in batch_server.acks] == [2]
        assert await saved_step(store) == 3
        before = await announced(bus, topology)
        assert before.version == 5
        await within(asyncio.to_thread(second.run), 60.0)
    after = await announced(bus, topology)
    assert (after.epoch > before.epoch, after.version) == (True, 5)
    assert same(state_of(second.learner), state_of(first.learner))


async def test_a_policy_that_is_finished_before_its_first_checkpoint_writes_one(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[..., Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=2)
    async with await batch_server.open():
        await within(asyncio.to_thread(make(every=50).run), 60.0)
    assert await saved_step(store) == 2
    assert [ack.step for ack in batch_server.acks] == [1]


async def test_told_to_stop_while_it_waits_it_saves_acknowledges_and_publishes(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=9)
    batch_server.instead = lambda request: NOT_READY if request.step == 3 else None
    trainer = make()
    async with await batch_server.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        await eventually_while(
            run, lambda: any(request.trained == 3 for request in batch_server.requests), timeout_s=30.0
        )
        trainer.stop.set()
        await within(run, 20.0)
    assert await saved_step(store) == 3
    assert [ack.step for ack in batch_server.acks] == [1, 2]
    assert (await announced(bus, topology)).version == 3


async def test_a_trainer_with_a_successor_ends_and_leaves_everything_to_it(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    batch_server = BatchServer(bus, topology, steps=4)
    older, newer = make(), make()
    async with await batch_server.open():

        def successor() -> None:
            newer.run()

        # The successor comes and goes when the older one has claimed everything and has not trained yet.
        with pytest.raises(SupersededTrainer):
            await within(asyncio.to_thread(older.run, before=successor), 60.0)
    assert newer.publisher is not None
    pointer = await announced(bus, topology)
    assert (pointer.epoch, pointer.version) == (newer.publisher.epoch, 4)
    index = await newest(store)
    assert index is not None
    assert (index.epoch, index.step) == (newer.publisher.epoch, 4)


class OneOfSeveral(TrainingLoop):
    """As with several ranks, which never publish while they wait: one of them alone cannot."""

    def _publish_passed_over(self) -> None:
        pass


@pytest.mark.parametrize("max_staleness", [pytest.param(0, marks=pytest.mark.slow), 2])
async def test_no_step_is_further_from_the_newest_published_weights_than_samples_may_be(
    bus: Bus, topology: JobTopology, make: Callable[..., Trainer], max_staleness: int
) -> None:
    """Else rollout waits for weights, and the trainer, that has passed them over, for rollout."""
    stored = threading.Event()
    held_up: list[int] = []

    class SlowPublisher(WeightPublisher):
        async def publish(self, version: int, captured: Captured, *, deadline_s: float) -> WeightPointer:
            if version > 0:
                held_up.append(version)
                await asyncio.to_thread(stored.wait, 600.0)
            return await super().publish(version, captured, deadline_s=deadline_s)

    batch_server = BatchServer(bus, topology, steps=9)
    trainer = make(max_staleness=max_staleness, parts=Parts(publisher=SlowPublisher, loop=OneOfSeveral))
    async with await batch_server.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        try:
            # One version is on its way, and up to here steps may do with it.
            await eventually_while(
                run, lambda: bool(held_up) and trainer.learner.step == held_up[0] + max_staleness + 1, timeout_s=30.0
            )
        finally:
            stored.set()
        await within(run, 60.0)
    assert (await announced(bus, topology)).version == 9
    assert all(later - earlier <= max_staleness + 1 for earlier, later in pairwise(held_up)), held_up
