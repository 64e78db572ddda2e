"""A trainer whose weights remember what they were trained on: going back to a checkpoint takes back what came after it.

What the auditor cannot see when a ledger has lost its end, this sees: whether a sample is in the weights twice.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.support.dataflow.simulation import Simulation
from trimtab.fabric.wire.checkpoint_proof import LedgerAnchored
from trimtab.fabric.wire.lease import BatchLease, BatchNotReady, LeaseRefused, Refusal

_CHECKPOINT_EVERY = 2
_APART = (Refusal.STEP_AHEAD, Refusal.STEP_CONSUMED)


@dataclass
class LineageTrainer:
    """One rank. Its checkpoints outlive it, unless they are lost."""

    sim: Simulation
    weights: list[frozenset[str]] = field(default_factory=list)
    """By step, the rows that are in them."""
    checkpoints: list[int] = field(default_factory=list)
    attempt: int = 0
    anchored: int = 0

    async def train(self, steps: int) -> None:
        """So many more, however often it must start again on the way."""
        until = len(self.weights) + steps
        while len(self.weights) < until:
            await self._step()

    async def _step(self) -> None:
        step = len(self.weights)
        answer = await self.sim.ask(step, attempt=self.attempt)
        match answer:
            case BatchNotReady():
                return
            case LeaseRefused():
                assert answer.refusal in _APART, answer
                # As a trainer does that is refused: what it has is durable before it ends.
                self._save()
                await self.restart()
                return
            case BatchLease():
                self.weights.append(frozenset(sample.trajectory_id for sample in answer.samples))
                self.sim.versions["solver"] = step + 1
        if len(self.weights) % _CHECKPOINT_EVERY == 0:
            self._save()
            await self.sim.acknowledge(step, attempt=self.attempt)

    def _save(self) -> None:
        if len(self.weights) not in self.checkpoints:
            self.checkpoints.append(len(self.weights))

    def lose_newest_checkpoint(self) -> None:
        """With the steps that are in no older one."""
        self.checkpoints.pop()

    async def restart(self) -> None:
        """From the newest checkpoint, with which the dataflow is made to go on."""
        self.attempt += 1
        step = self.checkpoints[-1] if self.checkpoints else 0
        del self.weights[step:]
        self.sim.versions["solver"] = step
        answer = await self.sim.ask(step, attempt=self.attempt, wait_s=0.0)
        if isinstance(answer, LeaseRefused) and answer.refusal in _APART:
            assert isinstance(await self.sim.prove(step, attempt=self.attempt), LedgerAnchored)
            self.anchored += 1

    def check(self) -> None:
        uses = Counter(row for rows in self.weights for row in rows)
        twice = [row for row, count in uses.items() if count > 1]
        assert not twice, f"in the weights twice: {twice[:5]}"
