"""One rank that trains without a pause, with the trainer's own batch stream, and notes when it got what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.support.dataflow.simulation import Simulation
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.wire.lease import BatchLease, StepTiming
from trimtab.trainer.advantages import AdvantageRule
from trimtab.trainer.batch_stream import BatchStream, PortionId, RankIdentity, Trained

_DURABLE_EVERY = 3


@dataclass
class SteadyRank:
    """Of a simulation's one policy."""

    simulation: Simulation
    step_s: float = 0.0
    """How long it computes."""
    steps: int = 0
    answered_at: list[float] = field(default_factory=list)
    """By `time.monotonic`, when a portion was in the rank."""
    trained_at: list[float] = field(default_factory=list)
    """And when a step was done."""
    rows: dict[int, set[str]] = field(default_factory=dict)
    """By step, the ids of what it was given."""

    async def train(self) -> None:
        """Until cancelled, or until there is nothing more to train."""
        job = self.simulation.job
        async with await Bus.connect(self.simulation.settings, name="rank") as bus:
            identity = RankIdentity(job=job.metadata.name, policy="solver", rank=0, world_size=1, attempt=0)
            stream = BatchStream(
                bus,
                self.simulation.topology.batch_subject("solver"),
                identity,
                advantages=AdvantageRule(longest_answer=64),
                clock=time.time,
                on_rows=self._note,
            )
            timing: StepTiming | None = None
            while True:
                began, chunk, trained = time.monotonic(), 0, Trained(steps=self.steps, previous=timing)
                while True:
                    portion = await stream.portion(
                        PortionId(step=self.steps, chunk=chunk), trained=trained, stopping=lambda: False
                    )
                    if portion is None:
                        return
                    self.answered_at.append(time.monotonic())
                    chunk += 1
                    if portion.totals is not None:
                        break
                await asyncio.sleep(self.step_s)
                timing = StepTiming(wait_seconds=0.0, step_seconds=time.monotonic() - began)
                self.steps += 1
                self.trained_at.append(time.monotonic())
                self.simulation.versions["solver"] = self.steps
                if self.steps % _DURABLE_EVERY == 0:
                    await stream.acknowledge(self.steps - 1, lease_id=portion.lease_id, weight_version=self.steps)

    def _note(self, lease: BatchLease, _payloads: Mapping[int, bytes]) -> None:
        self.rows.setdefault(lease.step, set()).update(sample.trajectory_id for sample in lease.samples)

    def longest_gap_s(self, *, since: float = 0.0) -> float:
        """Between two portions, the later of which came after this moment."""
        return max((after - before for before, after in self._gaps() if after >= since), default=0.0)

    def _gaps(self) -> Iterator[tuple[float, float]]:
        return zip(self.answered_at, self.answered_at[1:], strict=False)
