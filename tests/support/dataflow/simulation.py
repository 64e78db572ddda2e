"""A job without models: the real dataflow service between a simulated worker and simulated trainer ranks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.dataflow.jobs import job
from tests.support.polling import patiently
from trimtab.api.job import RLJob
from trimtab.api.stage import Stage
from trimtab.dataflow.ledger.authorship import JournalKey
from trimtab.dataflow.ledger.journal import Journal, JournalMaker
from trimtab.dataflow.service import run_dataflow
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.delivery import Delivery
from trimtab.fabric.bus.errors import BusError, BusTimeout, BusUnavailable, RemoteError, StreamFull
from trimtab.fabric.bus.keyvalue import KeyValue
from trimtab.fabric.bus.publisher import publish
from trimtab.fabric.bus.puller import Puller
from trimtab.fabric.bus.requests import request
from trimtab.fabric.bus.streams import declare_consumer, declare_job
from trimtab.fabric.bus.topology import ConsumerSpec, JobTopology
from trimtab.fabric.metrics import Metrics
from trimtab.fabric.settings import NatsSettings
from trimtab.fabric.signing import Signer, Verifier
from trimtab.fabric.wire.best_versions import BestVersions, BestVersionsRequest
from trimtab.fabric.wire.checkpoint_proof import CheckpointProof, LedgerAnchored
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.header import headers
from trimtab.fabric.wire.lease import (
    BatchLease,
    BatchNotReady,
    BatchRequest,
    LeaseAck,
    LeaseAcked,
    LeaseRefused,
    StepTiming,
)
from trimtab.fabric.wire.spans import Producer, Span
from trimtab.fabric.wire.task import Task
from trimtab.fabric.wire.trajectory import Failed, Finish, Scored, Trajectory
from trimtab.fabric.wire.weights import WeightPointer
from trimtab.trainer.checkpoints.index import CheckpointPointer, IndexReference
from trimtab.trainer.checkpoints.seal import CheckpointSeal

Answer = BatchLease | BatchNotReady | LeaseRefused
JOURNAL_KEY = JournalKey("the dataflow of every simulation")
SIGNER = Signer.generate()
"""Of the trainers."""
_FULL_S = 0.5


@dataclass
class Simulation:
    """One job of a test's own on a shared server."""

    settings: NatsSettings
    folder: Path
    job: RLJob
    bus: Bus
    versions: dict[str, int] = field(default_factory=lambda: {"solver": 0, "judge": 0})
    incarnations: int = 0
    answers: int = 0
    metrics: Metrics = field(default_factory=Metrics)
    reward: Callable[[Task, int], float] = lambda task, index: index / 10.0
    make_journal: JournalMaker = Journal
    clock: Callable[[], float] = time.time
    """Of the dataflow."""
    replicas: int = 1
    """Of its streams."""
    stored: dict[str, int] = field(default_factory=dict)
    """Rows that a worker was told are safe, by their ids, and where."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.job.spec.stages

    @property
    def topology(self) -> JobTopology:
        stages = tuple(stage.name for stage in self.stages)
        return JobTopology("default", self.job.metadata.name, stages=stages, replicas=self.replicas)

    @asynccontextmanager
    async def service(self) -> AsyncIterator[asyncio.Task[None]]:
        """One incarnation of the dataflow on a connection of its own; left as a process that is killed leaves."""
        name = uuid.uuid4().hex
        self.incarnations += 1
        self.metrics = Metrics()
        bus = await Bus.connect(self.settings, name=f"dataflow-{name}")
        task = asyncio.create_task(
            run_dataflow(
                self.job,
                bus,
                self.topology,
                folder=self.folder,
                member_id="dataflow-0",
                incarnation=name,
                journal_key=JOURNAL_KEY,
                clock=self.clock,
                metrics=self.metrics,
                make_journal=self.make_journal,
                checkpoint_keys=(SIGNER.public_text,),
            )
        )
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await bus.close()

    async def restarting_service(self, lifetime: Callable[[], float]) -> None:
        """Kills the service again and again, wherever it is, and starts it anew when it ends by itself.

        On a machine so busy that it dies before it has answered anyone, its next lives are longer.
        """
        longer = 1.0
        while True:
            answered = self.answers
            async with self.service() as task:
                await asyncio.wait({task}, timeout=longer * lifetime())
            longer = 1.0 if self.answers > answered else 1.05 * longer

    async def ask(
        self,
        step: int,
        *,
        policy: str = "solver",
        rank: int = 0,
        world_size: int = 1,
        attempt: int = 0,
        trained: bool = False,
        wait_s: float = 0.4,
        chunk: int = 0,
    ) -> Answer:
        """One question, repeated while the service is away."""
        question = BatchRequest(
            job=self.job.metadata.name,
            policy=policy,
            step=step,
            chunk=chunk,
            rank=rank,
            world_size=world_size,
            attempt=attempt,
            previous=StepTiming(wait_seconds=0.01, step_seconds=0.02) if trained else None,
            wait_hint=wait_s,
        )
        answer = decode(await self._request(encode(question), policy), BatchLease, BatchNotReady, LeaseRefused)
        assert isinstance(answer, BatchLease | BatchNotReady | LeaseRefused)
        return answer

    async def acknowledge(self, step: int, *, policy: str = "solver", attempt: int = 0) -> LeaseAcked | LeaseRefused:
        ack = LeaseAck(
            lease_id="x",
            job=self.job.metadata.name,
            policy=policy,
            step=step,
            rank=0,
            world_size=1,
            attempt=attempt,
            weight_version=step + 1,
            acked_at=time.time(),
        )
        answer = decode(await self._request(encode(ack), policy), LeaseAcked, LeaseRefused)
        assert isinstance(answer, LeaseAcked | LeaseRefused)
        return answer

    async def prove(self, step: int, *, sealed: bytes | None = None, attempt: int = 0) -> LedgerAnchored | LeaseRefused:
        """A trainer resumes at this step and shows its pointer, unless it is another one."""
        proof = CheckpointProof(
            job=self.job.metadata.name,
            policy="solver",
            step=step,
            attempt=attempt,
            world_size=1,
            sealed=sealed or pointer(f"default/{self.job.metadata.name}", step),
        )
        answer = decode(await self._request(encode(proof), "solver"), LedgerAnchored, LeaseRefused)
        assert isinstance(answer, LedgerAnchored | LeaseRefused)
        return answer

    async def _request(self, payload: bytes, policy: str) -> bytes:
        deadline_s = 0.8
        async with patiently(60.0):
            while True:
                try:
                    reply = await request(self.bus, self.topology.batch_subject(policy), payload, deadline_s=deadline_s)
                except (BusTimeout, BusUnavailable, RemoteError):
                    await asyncio.sleep(0.05)
                    deadline_s = min(1.2 * deadline_s, 10.0)
                else:
                    self.answers += 1
                    return reply.payload

    async def best_versions(self) -> BestVersions:
        """As a trainer asks before it collects."""
        question = BestVersionsRequest(job=self.job.metadata.name, policy="solver")
        return decode(await self._request(encode(question), "solver"), BestVersions)

    async def lease(self, step: int, **who: int | bool | str) -> BatchLease | None:
        """The rows, however long they take; None when the policy is finished."""
        while True:
            answer = await self.ask(step, **who)  # type: ignore[arg-type]
            if isinstance(answer, BatchLease):
                return answer
            if isinstance(answer, LeaseRefused):
                assert answer.refusal == "finished", answer
                return None

    async def train(
        self,
        *,
        steps: range,
        policy: str = "solver",
        world_size: int = 1,
        attempt: int = 0,
        durable_every: int = 3,
        seen: dict[int, set[str]],
    ) -> int:
        """Ranks that ask at once, train together and acknowledge; returns the step they stopped before."""
        for step in steps:
            # A resumed trainer has no times to tell of.
            trained = step > steps[0]
            leases = await asyncio.gather(
                *(
                    self.lease(step, policy=policy, rank=rank, world_size=world_size, attempt=attempt, trained=trained)
                    for rank in range(world_size)
                )
            )
            rows = [sample.trajectory_id for lease in leases if lease is not None for sample in lease.samples]
            if None in leases:
                assert rows == [], "some ranks were told to stop and others were not"
                return step
            assert len(set(rows)) == len(rows), "two ranks got the same row"
            assert seen.setdefault(step, set(rows)) == set(rows), "a step came again with other rows"
            self.versions[policy] = step + 1
            if (step + 1) % durable_every == 0:
                assert isinstance(await self.acknowledge(step, policy=policy, attempt=attempt), LeaseAcked)
        return steps[-1] + 1

    async def work(
        self,
        *,
        chance: random.Random | None = None,
        policies: tuple[str, ...] = ("solver",),
        stop: asyncio.Event | None = None,
        name: str = "worker",
        settings: NatsSettings | None = None,
    ) -> None:
        """A worker. With `chance` an unreliable one: it dies in the middle, repeats itself, and fails groups.

        At `stop` it ends between two tasks, so that what it has written is of tasks that have left the queue. With
        `settings` it dials other servers than the job.
        """
        async with await Bus.connect(settings or self.settings, name=name) as bus:
            await declare_job(bus, self.topology, deadline_s=60.0)
            spec = ConsumerSpec(
                name="rollout", stream=self.topology.tasks.name, ack_wait_s=5.0, max_deliver=-1, max_ack_pending=1000
            )
            await declare_consumer(bus, spec, deadline_s=60.0)
            async with await Puller.open(bus, stream=spec.stream, consumer=spec.name) as puller:
                for turn in itertools.count():
                    if stop is not None and stop.is_set():
                        return
                    # On a busy machine, or between two leaders; as a worker does, it asks again.
                    with contextlib.suppress(BusTimeout, BusUnavailable):
                        for delivery in await puller.fetch(batch=8, wait_s=0.5):
                            if stop is not None and stop.is_set():
                                return
                            with contextlib.suppress(BusError):
                                await self._serve(bus, delivery, turn, policies, chance, name)

    async def _serve(
        self,
        bus: Bus,
        delivery: Delivery,
        turn: int,
        policies: tuple[str, ...],
        chance: random.Random | None,
        worker: str,
    ) -> None:
        task = decode(delivery.payload, Task)
        if any(self.versions[policy] < minimum for policy, minimum in task.minimum_versions.items()):
            await delivery.nak()  # as a worker that has waited for those weights in vain
            return
        failed = chance is not None and chance.random() < 0.1
        trajectories = [
            trajectory(
                task,
                policy,
                index,
                version=self.versions[policy],
                failed=failed,
                reward=self.reward(task, index),
                worker=worker,
            )
            for index in range(task.group_size)
            for policy in policies
        ]
        if chance is not None and chance.random() < 0.2:
            for one in trajectories[: chance.randrange(len(trajectories))]:
                await self.put(bus, one, message_id=one.message_id)
            await delivery.nak()  # as a worker that died would leave it, without waiting for the lease to run out
            return
        for one in trajectories:
            await self.put(bus, one, message_id=one.message_id)
            if chance is not None and chance.random() < 0.1:
                # Past the server's memory of ids: only the ledger can tell that it had this one.
                await self.put(bus, one, message_id=f"{one.trajectory_id}+{turn}.{one.run}")
        await delivery.ack_confirmed(deadline_s=60.0)

    async def announce(self, policy: str, version: int) -> None:
        """As a trainer does when its weights are in the store."""
        pointer = WeightPointer(
            job=self.job.metadata.name,
            policy=policy,
            version=version,
            epoch=1,
            manifest_key="manifest",
            manifest_digest="blake3:" + "0" * 64,
            size_bytes=1,
            published_at=time.time(),
        )
        await KeyValue(self.bus, self.topology.weights).put(policy, encode(pointer), deadline_s=60.0)

    async def put(self, bus: Bus, one: Trajectory, *, message_id: str) -> None:
        subject = self.topology.trajectory_subject(one.policy)
        payload, head = encode(one), headers(one)
        while True:
            try:
                stored = await publish(bus, subject, payload, message_id=message_id, headers=head, deadline_s=60.0)
            except StreamFull:
                # As a worker does: it keeps what it has until there is room.
                await asyncio.sleep(_FULL_S)
            else:
                self.stored[one.trajectory_id] = stored.sequence
                return


def pointer(job: str, step: int, *, signer: Signer = SIGNER, policy: str = "solver") -> bytes:
    """What a trainer has signed when its newest checkpoint is of this step."""
    reference = IndexReference(step=step, epoch=1, name="index", size=1, sha256="0" * 64)
    seal = CheckpointSeal(job=job, policy=policy, signer=signer, verifier=Verifier([signer.public_text]))
    return seal.seal(CheckpointPointer(epoch=1, moves=1, writer="w", checkpoints=(reference,)))


def trajectory(
    task: Task,
    policy: str,
    index: int,
    *,
    version: int,
    failed: bool = False,
    reward: float = 0.0,
    worker: str = "worker",
) -> Trajectory:
    outcome = Failed(error="engine-gone") if failed else Scored(reward=reward, finish=Finish.STOP)
    spans = () if failed else (Span(2, Producer.PROMPT), Span(1 + index, Producer.MODEL, version))
    return Trajectory(
        trajectory_id=f"{task.task_id}.{policy}.{index}",
        job=task.job,
        policy=policy,
        role=policy,
        task_id=task.task_id,
        prompt_id=task.prompt_id,
        group_id=f"{task.task_id}.{policy}",
        group_index=index,
        group_size=task.group_size,
        purpose=task.purpose,
        benchmark=task.benchmark,
        outcome=outcome,
        token_ids=np.zeros(0 if failed else 3 + index, dtype=np.int32),
        logprobs=np.zeros(0 if failed else 1 + index, dtype=np.float32),
        spans=spans,
        worker=worker,
        pool="local",
        engine="builtin",
        started_at=1.0,
        finished_at=2.0,
    )


@asynccontextmanager
async def simulation(
    settings: NatsSettings,
    folder: Path,
    *,
    prompts: int = 50,
    make_journal: JournalMaker = Journal,
    replicas: int = 1,
    stages: tuple[Stage, ...] = (),
    **fields: Any,
) -> AsyncIterator[Simulation]:
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": f"p{n}"}) + "\n" for n in range(prompts)))
    policies = fields.pop("policies", 1)
    if stages:
        fields["stages"] = [stage.model_dump(mode="json", by_alias=True, exclude_none=True) for stage in stages]
        fields["workflow"] = {"roles": [{"name": name, "policy": name} for name in ["solver", "judge"][:policies]]}
    desired = job(f"j{uuid.uuid4().hex[:10]}", policies=policies, **fields)
    async with await Bus.connect(settings, name="test") as bus:
        yield Simulation(
            settings=settings, folder=folder, job=desired, bus=bus, make_journal=make_journal, replicas=replicas
        )


@asynccontextmanager
async def running(*coroutines: object) -> AsyncIterator[list[asyncio.Task[None]]]:
    """In the background, and gone afterwards. What one of them raises ends what happens here at once, and is raised."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]  # type: ignore[call-overload]
    here = asyncio.current_task()
    assert here is not None

    def end_here(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception():
            here.cancel()

    for task in tasks:
        task.add_done_callback(end_here)
    try:
        yield tasks
    except asyncio.CancelledError:
        if not any(task.done() and not task.cancelled() and task.exception() for task in tasks):
            raise
        here.uncancel()
    finally:
        for task in tasks:
            task.remove_done_callback(end_here)
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
