"""The training loop on a real bus and store: order of checkpoint and acknowledgement, resuming, stopping, fencing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
import torch
import yaml

from tests.integration.trainer.desk import NOT_READY, Answer, Desk
from tests.integration.trainer.places import PREFIX, same, state_of
from tests.integration.trainer.samples import policy
from tests.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.objects.client import ObjectStore
from trimtab.fabric.objects.errors import StoreRefused
from trimtab.fabric.settings import NatsSettings, ObjectStoreSettings, Settings, environment_for, write_secrets
from trimtab.fabric.signing import Signer
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, BatchRequest, LeaseAck, LeaseRefused, Refusal
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.trainer.advantages.shaping import AdvantageRule
from trimtab.trainer.background import Background
from trimtab.trainer.batch import Row
from trimtab.trainer.batch_stream import BatchStream, RankIdentity
from trimtab.trainer.checkpoints.index import CheckpointIndex
from trimtab.trainer.checkpoints.object_place import ObjectPlace
from trimtab.trainer.checkpoints.saving import CheckpointFailed, CheckpointSaver
from trimtab.trainer.checkpoints.store import CheckpointStore
from trimtab.trainer.learner import Learner
from trimtab.trainer.loop import TrainingLoop
from trimtab.trainer.metrics import TrainerMetrics
from trimtab.trainer.resuming import resume
from trimtab.weights.publisher import WeightPublisher
from trimtab.weights.store.collection import CollectionRules
from trimtab.weights.store.latest import SupersededTrainer
from trimtab.weights.upkeep import UpkeepRules

SIGNER = Signer.generate()
SUPERSEDED = LeaseRefused(refusal=Refusal.SUPERSEDED, message="a newer attempt asks")


class Trainer:
    """One rank in this process, as trimtab.trainer wires it."""

    def __init__(
        self, model: Path, nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology, scratch: Path, *,
        every: int = 2,
    ) -> None:  # fmt: skip
        self._scratch = scratch
        self._nats = nats
        self._objects = objects
        self._topology = topology
        self._policy = policy(checkpoint={"everySteps": every, "keep": 2})
        self.learner = Learner(self._policy, model_path=model)
        self.stop = threading.Event()
        self.metrics = Metrics()
        self.publisher: WeightPublisher | None = None

    def run(self, *, before: Callable[[], None] = lambda: None) -> None:
        with Background() as background:
            stack = AsyncExitStack()
            try:
                stream, checkpoints = background.run(self._connect(stack))
                resume(self.learner, checkpoints, background, rank=0, scratch=self._scratch)
                saver = CheckpointSaver(self.learner, checkpoints, background, rank=0, acknowledge=stream.acknowledge)
                loop = TrainingLoop(
                    self.learner, stream, saver, self.publisher, background, TrainerMetrics(self.metrics),
                    policy=self._policy, stopping=self.stop.is_set,
                )  # fmt: skip
                before()
                loop.run()
            finally:
                background.run(stack.aclose())

    async def _connect(self, stack: AsyncExitStack) -> tuple[BatchStream, CheckpointStore]:
        bus = await stack.enter_async_context(await Bus.connect(self._nats, name="trainer"))
        store = await stack.enter_async_context(ObjectStore(self._objects))
        pointers = await KeyValue.declare(bus, self._topology.weights, deadline_s=10.0)
        self.publisher = await WeightPublisher.open(
            store,
            pointers,
            job=self._topology.job,
            policy="solver",
            signer=SIGNER,
            rules=UpkeepRules(
                anchor_every=100,
                fold_every=16,
                collection=CollectionRules(keep_versions=5, lease_ttl_s=600.0, grace_s=600.0),
            ),
            folder=self._scratch,
            clock=lambda: 1.0,
            deadline_s=10.0,
        )
        stack.push_async_callback(self.publisher.close)
        checkpoints = CheckpointStore(ObjectPlace(store, PREFIX, workshop=self._scratch / "checkpoints"), keep=2)
        await checkpoints.claim(self.publisher.epoch)
        identity = RankIdentity(job=self._topology.job, policy="solver", rank=0, world_size=1, attempt=0)
        subject = self._topology.batch_subject("solver")
        return BatchStream(
            bus, subject, identity, advantages=AdvantageRule(longest_answer=8), clock=lambda: 1.0
        ), checkpoints


def poll_until(condition: Callable[[], bool]) -> None:
    """In a thread of its own, where `eventually` cannot be used."""
    end = time.monotonic() + 30.0
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture
def topology() -> JobTopology:
    return JobTopology("t", f"l{uuid.uuid4().hex[:12]}")


@pytest.fixture
def make(
    model: Path, nats_settings: NatsSettings, store_settings: ObjectStoreSettings, topology: JobTopology, tmp_path: Path
) -> Callable[[], Trainer]:
    return lambda: Trainer(model, nats_settings, store_settings, topology, tmp_path / uuid.uuid4().hex)


async def announced(bus: Bus, topology: JobTopology) -> WeightPointer:
    bucket = KeyValue(bus, topology.weights)
    return decode((await bucket.get("solver", deadline_s=10.0)).value, WeightPointer)


async def newest(store: ObjectStore) -> CheckpointIndex | None:
    return await CheckpointStore(ObjectPlace(store, PREFIX, workshop=Path("unused")), keep=2).newest()


async def saved_step(store: ObjectStore) -> int | None:
    index = await newest(store)
    return None if index is None else index.step


async def test_a_step_is_acknowledged_only_when_its_checkpoint_is_there(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    desk = Desk(bus, topology, steps=5)

    async def checkpoint_is_there(ack: LeaseAck) -> None:
        assert await saved_step(store) == ack.step + 1

    desk.before_ack = checkpoint_is_there
    trainer = make()
    async with await desk.open():
        await asyncio.wait_for(asyncio.to_thread(trainer.run), 60.0)
    acknowledged = [ack.step for ack in desk.acks]
    assert acknowledged[0] == 1
    assert acknowledged[-1] == 4
    assert acknowledged == sorted(set(acknowledged))
    # One that was not answered by the end of its step is asked for again.
    first = {request.step: request for request in reversed(desk.requests)}
    assert sorted(first) == [0, 1, 2, 3, 4, 5]
    ahead = [first[step].trained for step in sorted(first)]
    assert ahead == [0, 0, 1, 2, 3, 4], "each is asked for one step ahead"
    assert [first[step].previous is None for step in sorted(first)] == [True] * 2 + [False] * 4
    assert await saved_step(store) == 5
    assert (await announced(bus, topology)).version == 5


async def test_what_its_steps_were_like_can_be_read_from_its_metrics(
    bus: Bus, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    trainer = make()
    async with await Desk(bus, topology, steps=2).open():
        await asyncio.wait_for(asyncio.to_thread(trainer.run), 60.0)

    def value(name: str) -> float:
        found = trainer.metrics.registry.get_sample_value(f"trimtab_trainer_{name}")
        assert found is not None, name
        return found

    assert value("step") == 2
    assert value("tokens_total") > 0
    assert value("grad_norm") > 0
    assert value("skipped_steps_total") == 0
    assert value("sampling_drift") > 0
    assert 0 < value("logprob_mismatch") < 20, "the desk's logprobs are made up"
    assert 0 <= value("wait_seconds_total") <= value("step_seconds_total")


async def test_rows_that_wait_for_the_news_of_a_step_are_asked_for_again_when_it_is_done(
    bus: Bus, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    """As when rollout may be no version behind: the rows of a step exist only after the dataflow knows of the last."""
    desk = Desk(bus, topology, steps=3)
    desk.instead = lambda request: NOT_READY if request.trained_steps < request.step else None
    async with await desk.open():
        await asyncio.wait_for(asyncio.to_thread(make().run), 60.0)
    assert {request.step for request in desk.requests if request.trained == request.step} == {0, 1, 2, 3}
    assert {request.step for request in desk.requests if request.previous is not None} >= {1, 2, 3}


async def test_a_rank_computes_on_the_portions_that_exist(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    """A step of two rows in two portions: the second one comes only after the first was fetched."""
    desk = Desk(bus, topology, steps=2)

    def in_portions(request: BatchRequest) -> Answer:
        lease = desk.lease(request)
        if not isinstance(lease, BatchLease):
            return lease
        samples = lease.samples[request.chunk : request.chunk + 1]
        return msgspec.structs.replace(
            lease, chunk=request.chunk, samples=samples, totals=lease.totals if request.chunk == 1 else None
        )

    whole, cut = make(), make()
    async with await desk.open():
        await asyncio.wait_for(asyncio.to_thread(whole.run), 60.0)
    desk.instead = in_portions
    desk.requests.clear()
    async with await desk.open():
        await store.delete("checkpoints/solver/latest.json")
        await asyncio.wait_for(asyncio.to_thread(cut.run), 60.0)
    asked = [(request.step, request.chunk) for request in desk.requests]
    assert asked == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]
    for one, other in zip(whole.learner.model.parameters(), cut.learner.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


async def test_after_a_crash_it_repeats_from_the_checkpoint_and_ends_where_it_would_have(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(bus, topology, steps=5)
    first, second = make(), make()
    accumulate = first.learner.accumulate

    def crash_in_step_3(rows: Sequence[Row]) -> None:
        if first.learner.step == 3:
            poll_until(lambda: bool(desk.acks))
            raise MemoryError("no memory left")
        accumulate(rows)

    monkeypatch.setattr(first.learner, "accumulate", crash_in_step_3)
    async with await desk.open():
        with pytest.raises(MemoryError):
            await asyncio.wait_for(asyncio.to_thread(first.run), 60.0)
        assert await saved_step(store) == 2
        desk.requests.clear()
        await asyncio.wait_for(asyncio.to_thread(second.run), 60.0)
    assert desk.requests[0].step == 2
    whole = make()
    async with await desk.open():
        await store.delete("checkpoints/solver/latest.json")
        await asyncio.wait_for(asyncio.to_thread(whole.run), 60.0)
    assert same(state_of(whole.learner), state_of(second.learner))


async def test_told_to_stop_while_it_waits_it_saves_acknowledges_and_publishes(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    desk = Desk(bus, topology, steps=9)
    desk.instead = lambda request: NOT_READY if request.step == 3 else None
    trainer = make()
    async with await desk.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        await eventually(lambda: any(request.trained == 3 for request in desk.requests), timeout_s=30.0)
        trainer.stop.set()
        await asyncio.wait_for(run, 20.0)
    assert await saved_step(store) == 3
    assert [ack.step for ack in desk.acks] == [1, 2]
    assert (await announced(bus, topology)).version == 3


async def test_a_trainer_with_a_successor_ends_and_leaves_everything_to_it(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer]
) -> None:
    desk = Desk(bus, topology, steps=4)
    older, newer = make(), make()
    async with await desk.open():

        def successor() -> None:
            newer.run()

        # The successor comes and goes when the older one has claimed everything and has not trained yet.
        with pytest.raises(SupersededTrainer):
            await asyncio.wait_for(asyncio.to_thread(older.run, before=successor), 60.0)
    assert newer.publisher is not None
    pointer = await announced(bus, topology)
    assert (pointer.epoch, pointer.version) == (newer.publisher.epoch, 4)
    index = await newest(store)
    assert index is not None
    assert (index.epoch, index.step) == (newer.publisher.epoch, 4)


class SlowStorage:
    """Files of checkpoints are written only once it is opened; `begun` counts those that came."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened = threading.Event()
        self.begun = 0
        put_file = ObjectPlace.put_file

        async def slow(place: ObjectPlace, name: str, source: Path) -> None:
            self.begun += 1
            await eventually(self.opened.is_set, timeout_s=60.0)
            await put_file(place, name, source)

        monkeypatch.setattr(ObjectPlace, "put_file", slow)


async def test_training_goes_on_while_a_checkpoint_is_under_way_and_the_next_is_put_off(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(bus, topology, steps=9)
    desk.instead = lambda request: NOT_READY if request.step == 7 and not storage.opened.is_set() else None
    storage = SlowStorage(monkeypatch)
    trainer = make()
    async with await desk.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        # Due at steps 2, 4 and 6; the first has not got anywhere when the seventh is made.
        await eventually(lambda: any(request.trained == 7 for request in desk.requests), timeout_s=30.0)
        assert storage.begun == 1
        assert desk.acks == []
        assert await saved_step(store) is None
        storage.opened.set()
        await asyncio.wait_for(run, 30.0)
    assert desk.acks[0].step == 1
    assert desk.acks[-1].step == 8
    assert await saved_step(store) == 9


async def test_told_to_stop_while_a_checkpoint_is_under_way_it_ends_that_and_writes_another(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(bus, topology, steps=9)
    desk.instead = lambda request: NOT_READY if request.step == 3 else None
    storage = SlowStorage(monkeypatch)
    trainer = make()
    async with await desk.open():
        run = asyncio.create_task(asyncio.to_thread(trainer.run))
        await eventually(
            lambda: storage.begun == 1 and any(request.trained == 3 for request in desk.requests), timeout_s=30.0
        )
        trainer.stop.set()
        storage.opened.set()
        await asyncio.wait_for(run, 20.0)
    assert [ack.step for ack in desk.acks] == [1, 2]
    assert await saved_step(store) == 3


async def test_a_checkpoint_that_fails_ends_training_also_while_it_waits_for_rows(
    bus: Bus, store: ObjectStore, topology: JobTopology, make: Callable[[], Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = Desk(bus, topology, steps=9)
    desk.instead = lambda request: NOT_READY if request.step == 2 else None

    async def refuse(*_: object) -> None:
        raise StoreRefused("the bucket is gone")

    monkeypatch.setattr(ObjectPlace, "put_file", refuse)
    async with await desk.open():
        with pytest.raises(CheckpointFailed, match="checkpoint 2 could not be written: the bucket is gone"):
            await asyncio.wait_for(asyncio.to_thread(make().run), 30.0)
    assert desk.acks == []
    assert await saved_step(store) is None


class Ranks:
    """`torchrun` with two ranks of the real trainer."""

    def __init__(
        self, folder: Path, model: Path, nats: NatsSettings, objects: ObjectStoreSettings, topology: JobTopology
    ) -> None:
        (folder / "model").symlink_to(model)
        manifest = {
            "apiVersion": "rl.trimtab.dev/v1alpha1",
            "kind": "RLJob",
            "metadata": {"name": topology.job, "namespace": topology.namespace},
            "spec": {
                "maxSteps": 100,
                "workflow": {"entrypoint": "trimtab.rollout.workflows.single_turn:SingleTurn"},
                "data": {"prompts": [{"name": "x", "jsonl": {"uri": "x"}}], "groupSize": 2, "batchSize": 2},
                "policies": [policy(checkpoint={"everySteps": 50}).model_dump(mode="json", exclude_none=True)],
                "pools": [{"name": "local"}],
            },
        }
        (folder / "job.yaml").write_text(yaml.safe_dump(manifest))
        settings = Settings.model_validate(
            {
                "pod": {
                    "namespace": topology.namespace, "job": topology.job, "role": "trainer", "name": "trainer-0",
                    "policy": "solver",
                },
                "nats": nats,
                "object_store": objects,
                "weights": {"signing_seed": SIGNER.reveal_seed()},
                "probes": {"port": 0},
            }
        )  # fmt: skip
        write_secrets(settings, folder / "secrets")
        environment = environment_for(settings, secrets_dir=folder / "secrets")
        self._log = folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2",
                    "-m", "trimtab.trainer",
                ],
                env=os.environ | environment | {
                    "TRIMTAB_JOB_FILE": str(folder / "job.yaml"),
                    "TRIMTAB_SCRATCH": str(folder / "scratch"),
                    "OMP_NUM_THREADS": "1",
                },
                stdout=log,
                stderr=log,
            )  # fmt: skip

    @property
    def log(self) -> str:
        return self._log.read_text()


@pytest.mark.parametrize("ending", ["refusal", "sigterm"])
async def test_ranks_leave_together(
    bus: Bus,
    store: ObjectStore,
    topology: JobTopology,
    model: Path,
    tmp_path: Path,
    nats_settings: NatsSettings,
    store_settings: ObjectStoreSettings,
    ending: str,
) -> None:
    """Rank 1 is refused while rank 0 has rows, or both are told to stop: nobody hangs, what was trained is kept."""
    desk = Desk(bus, topology, steps=9)

    def answer(request: BatchRequest) -> Answer | None:
        if request.step < 3:
            return None
        if ending == "refusal":
            return SUPERSEDED if request.rank == 1 else None
        return NOT_READY

    def asked() -> set[int]:
        """Ranks that wait for step 3; one that is refused does not ask again when step 2 is done."""
        waiting = [request for request in desk.requests if request.step == 3]
        return {request.rank for request in waiting if request.trained == 3 or ending == "refusal"}

    desk.instead = answer
    async with await desk.open():
        ranks = Ranks(tmp_path, model, nats_settings, store_settings, topology)
        try:
            await eventually(
                lambda: asked() == {0, 1} or ranks.process.poll() is not None,
                timeout_s=90.0,
            )
            if ending == "sigterm":
                ranks.process.send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(ranks.process.wait, 40.0)
        finally:
            ranks.process.kill()
            ranks.process.wait(10.0)
    assert code != 0, ranks.log
    assert await saved_step(store) == 3, ranks.log
    assert (await announced(bus, topology)).version == 3
    if ending == "refusal":
        assert "a newer attempt asks" in ranks.log
