"""Trainer ranks without models: they ask for rows, fetch them, take their time, and keep the step in a file."""

from __future__ import annotations

import asyncio

import numpy as np

from tests.support.dataflow.simulation import Simulation
from tests.support.dataflow.stage_worker import numbers, reward
from tests.support.dataflow.storm.leaving import on_sigterm
from tests.support.dataflow.storm.site import RANKS, STEP_S, Durable, Leased, Row, Site, Superseded
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.direct_get import get_messages
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.lease import BatchLease, BatchNotReady, LeaseAcked, LeaseRefused, Refusal, SampleReference
from trimtab.fabric.wire.spans import model_mask
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.trainer.leased_columns import LeasedColumns

_CHECKPOINT_EVERY = 4
_ROWS_DEADLINE_S = 60.0
_PEER_DEADLINE_S = 120.0
_PEER_LOOK_S = 0.01


class WrongRow(RuntimeError):
    """The stream holds another trajectory under a sequence than the lease names, or a column of another."""


class Rank:
    """One of the ranks of one attempt. They go from step to step together; rank 0 writes for all of them."""

    def __init__(self, bus: Bus, site: Site, policy: str, *, rank: int, attempt: int) -> None:
        self._bus = bus
        self._site = site
        self._policy = policy
        self._rank = rank
        self._attempt = attempt
        self._name = f"{policy}-{rank}-{attempt}"
        self._desk = Simulation(settings=site.nats, folder=site.folder, job=site.job, bus=bus)
        self._step = site.checkpoints(policy).newest()
        self._has_trained = False
        self.stopping = asyncio.Event()

    async def run(self) -> None:
        self._publish()
        while (lease := await self._lease()) is not None:
            rows = await self._rows(lease)
            self._site.note(self._name, Leased(self._policy, self._step, self._rank, self._attempt, rows))
            if not await self._all_have_rows():
                break
            await asyncio.sleep(STEP_S[self._policy])
            self._step += 1
            self._has_trained = True
            self._publish()
            if self._step % _CHECKPOINT_EVERY == 0:
                await self._save()
        if self._has_trained:
            await self._save()

    async def _lease(self) -> BatchLease | None:
        """None when told to stop, or when a newer attempt has taken over."""
        while not self.stopping.is_set():
            answer = await self._desk.ask(
                self._step,
                policy=self._policy,
                rank=self._rank,
                world_size=RANKS,
                attempt=self._attempt,
                trained=self._has_trained,
            )
            if isinstance(answer, BatchLease):
                return answer
            if isinstance(answer, BatchNotReady):
                await asyncio.sleep(answer.retry_after)
            elif answer.refusal is Refusal.STEP_CONSUMED and self._resumed():
                continue
            else:
                self._give_way(answer)
        return None

    def _resumed(self) -> bool:
        """Whether there is a newer checkpoint, from the attempt before: it was killed after this one had begun."""
        saved = self._site.checkpoints(self._policy).newest()
        newer = saved > self._step
        self._step, self._has_trained = saved, False
        return newer

    def _give_way(self, refused: LeaseRefused) -> None:
        if refused.refusal is not Refusal.SUPERSEDED:
            raise RuntimeError(f"{self._name} at step {self._step}: {refused.refusal}: {refused.message}")
        self._site.note(self._name, Superseded(self._policy, self._attempt))
        self._has_trained = False  # nothing to save: the newer attempt does these steps again
        self.stopping.set()

    async def _rows(self, lease: BatchLease) -> tuple[Row, ...]:
        sequences = [sample.sequence for sample in lease.samples]
        stored = (await get_messages(self._bus, lease.stream, sequences, deadline_s=_ROWS_DEADLINE_S)).complete()
        columns = await self._columns(lease)
        rows = []
        for sample in lease.samples:
            found = decode(stored[sample.sequence].payload, Trajectory)
            if found.trajectory_id != sample.trajectory_id or found.oldest_version is None:
                raise WrongRow(f"sequence {sample.sequence} has {found.trajectory_id}, leased {sample.trajectory_id}")
            rows.append(
                Row(
                    sample.sequence,
                    found.trajectory_id,
                    found.group_id,
                    found.group_index,
                    found.oldest_version,
                    found.part,
                    found.run,
                    self._joined(lease, sample, found, columns),
                )
            )
        return tuple(rows)

    async def _columns(self, lease: BatchLease) -> LeasedColumns:
        sequences = sorted({column.sequence for group in lease.groups for column in group.columns})
        if lease.columns_stream is None or not sequences:
            return LeasedColumns(payloads={})
        stored = await get_messages(self._bus, lease.columns_stream, sequences, deadline_s=_ROWS_DEADLINE_S)
        return LeasedColumns(payloads={at: message.payload for at, message in stored.complete().items()})

    def _joined(
        self, lease: BatchLease, sample: SampleReference, row: Trajectory, columns: LeasedColumns
    ) -> tuple[tuple[str, int], ...]:
        """As a trainer does, and then looks whether these are the numbers that were computed of the row."""
        group, mask = lease.groups[sample.group], model_mask(row.spans)
        joined = columns.of(sample, group, mask=mask, turns=row.turn_rewards)
        for stage, values in joined.items():
            if not np.array_equal(values[mask], numbers(stage, row.trajectory_id, int(mask.sum()))):
                raise WrongRow(f"{row.trajectory_id} has numbers that {stage} did not compute of it")
        if self._site.stages and self._policy == "solver" and sample.reward != reward("grade", row.trajectory_id):
            raise WrongRow(f"{row.trajectory_id} has reward {sample.reward}, which is not its grade")
        return tuple((column.stage, column.sequence) for column in group.columns)

    async def _all_have_rows(self) -> bool:
        """As a sum over all ranks would: nobody trains before everybody can. False when told to stop meanwhile."""
        own, *others = (
            self._site.step(self._policy, attempt=self._attempt, rank=(self._rank + offset) % RANKS)
            for offset in range(RANKS)
        )
        own.write(self._step + 1)
        async with asyncio.timeout(_PEER_DEADLINE_S):
            while any(other.read() <= self._step for other in others):
                if self.stopping.is_set():
                    return False
                await asyncio.sleep(_PEER_LOOK_S)
        return True

    def _publish(self) -> None:
        """After a crash the version goes back to the checkpoint's, as it does for real pools."""
        if self._rank == 0:
            self._site.version(self._policy).write(self._step)

    async def _save(self) -> None:
        """Durable before acknowledged: an acknowledged step is never asked for again."""
        if self._rank != 0:
            return
        self._site.checkpoints(self._policy).add(self._step)
        answer = await self._desk.acknowledge(self._step - 1, policy=self._policy, attempt=self._attempt)
        if isinstance(answer, LeaseAcked):
            self._site.note(self._name, Durable(self._policy, self._step - 1, self._attempt))
        else:
            self._give_way(answer)


def train(site: Site, policy: str, rank: int, attempt: int) -> None:
    """Until SIGTERM, from the last checkpoint on."""
    site.write_output_to(f"{policy}-{rank}")
    asyncio.run(_train(site, policy, rank, attempt))


async def _train(site: Site, policy: str, rank: int, attempt: int) -> None:
    async with await Bus.connect(site.nats, name=f"{policy}-{rank}-{attempt}") as bus:
        one = Rank(bus, site, policy, rank=rank, attempt=attempt)
        on_sigterm(one.stopping.set)
        await one.run()
