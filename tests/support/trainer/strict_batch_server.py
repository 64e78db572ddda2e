"""The dataflow's end of the batch protocol for a trainer under fire, as strict as the ledger: what is acknowledged is
never given out again, and an attempt that has a successor gets nothing.
"""

from __future__ import annotations

from tests.support.trainer.batch_server import Answer, BatchServer
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.requests import Reply, Request
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode, encode
from trimtab.fabric.wire.lease import BatchNotReady, BatchRequest, LeaseAck, LeaseRefused, Refusal

_NOT_YET = BatchNotReady(policy="solver", step=0, reason="too-few-groups", retry_after=0.02)


class StrictBatchServer(BatchServer):
    """Has rows for `steps` steps. Those from `limit` on do not exist yet, and from `last` on there will be none."""

    def __init__(self, bus: Bus, topology: JobTopology, *, steps: int) -> None:
        super().__init__(bus, topology, steps=steps)
        self.limit = steps
        self.last = steps
        self.attempt = 0
        self.acknowledged = 0
        """Steps that are durable."""
        self.superseded = 0
        """Requests of attempts that should be dead."""
        self.instead = self._refusal

    async def _answer(self, request: Request) -> Reply:
        message = decode(request.payload, BatchRequest, LeaseAck)
        assert isinstance(message, BatchRequest | LeaseAck)
        self.attempt = max(self.attempt, message.attempt)
        if message.attempt < self.attempt:
            self.superseded += 1
            return Reply(encode(LeaseRefused(refusal=Refusal.SUPERSEDED, message="a newer attempt asks")))
        if isinstance(message, LeaseAck):
            self.acknowledged = max(self.acknowledged, message.step + 1)
        return await super()._answer(request)

    def _refusal(self, request: BatchRequest) -> Answer | None:
        if request.step < self.acknowledged:
            return LeaseRefused(refusal=Refusal.STEP_CONSUMED, message=f"step {request.step} is durable")
        if request.step >= self.last:
            return LeaseRefused(refusal=Refusal.FINISHED, message="enough")
        return _NOT_YET if request.step >= self.limit else None
