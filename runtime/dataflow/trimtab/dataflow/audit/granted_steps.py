"""Which step each group was granted to, as far as the ledger still says it: for people who read what was trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
import zstandard

from trimtab.dataflow.ledger.errors import LedgerError
from trimtab.dataflow.ledger.records import RECORDS, LedgerAnchoredAnew, SnapshotPart, StepGranted
from trimtab.dataflow.ledger.snapshot import LedgerSnapshot, unpacked
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.reader import StreamReader
from trimtab.fabric.bus.topology import JobTopology
from trimtab.fabric.wire.envelope import decode
from trimtab.fabric.wire.errors import WireError
from trimtab.fabric.wire.message import Message

_BATCH = 512
_DEADLINE_S = 30.0

Steps = Mapping[tuple[str, str], int]
"""By trainer and group, the step that trained on it first."""


@dataclass
class GrantedSteps:
    """Told the messages of a ledger in their order."""

    steps: dict[tuple[str, str], int] = field(default_factory=dict)
    granted_at: dict[tuple[str, str], float] = field(default_factory=dict)
    """Unix time, of those that no snapshot has taken the place of."""
    _parts: list[bytes] = field(default_factory=list)

    def add(self, message: Message) -> None:
        match message:
            case SnapshotPart():
                self._parts = [*self._parts[: message.number], message.body]
                if len(self._parts) == message.count:
                    self._add_snapshot(unpacked(b"".join(self._parts)))
                    self._parts = []
            case StepGranted():
                for group in message.groups:
                    self.steps.setdefault((message.policy, group), message.step)
                    self.granted_at.setdefault((message.policy, group), message.granted_at)
            case LedgerAnchoredAnew():
                # What was granted from that step on counts as never granted.
                undone = [key for key, step in self.steps.items() if key[0] == message.policy and step >= message.step]
                for key in undone:
                    del self.steps[key]

    def _add_snapshot(self, snapshot: LedgerSnapshot) -> None:
        for policy, trainer in snapshot.trainers.items():
            for step, portions in trainer.granted.items():
                for group, uses in (allotment for portion in portions for allotment in portion):
                    if not uses:
                        self.steps.setdefault((policy, group), step)


async def granted_steps(bus: Bus, topology: JobTopology) -> Steps:
    return (await grants(bus, topology)).steps


async def grants(bus: Bus, topology: JobTopology) -> GrantedSteps:
    """A record that cannot be read says nothing here: the dataflow judges those."""
    found = GrantedSteps()
    async with StreamReader(bus, stream=topology.ledger.name) as reader:
        while not reader.caught_up:
            for delivery in await reader.read(batch=_BATCH, wait_s=_DEADLINE_S):
                try:
                    found.add(decode(delivery.payload, *RECORDS, SnapshotPart))
                except (WireError, LedgerError, zstandard.ZstdError, msgspec.DecodeError):
                    continue
    return found
