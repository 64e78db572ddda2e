"""Mirrors of a job's streams, for an audit: they keep what the dataflow has compacted or trimmed in the originals."""

from __future__ import annotations

from dataclasses import dataclass

from tests.support.polling import eventually
from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import Json, api_call
from trimtab.fabric.bus.streams import declare_job
from trimtab.fabric.bus.topology import JobTopology

_DEADLINE_S = 60.0


@dataclass(frozen=True)
class Copies:
    """Streams of their own with the sequences of the originals."""

    topology: JobTopology

    @property
    def ledger(self) -> str:
        return f"{self.topology.ledger.name}-copy"

    @property
    def trajectories(self) -> str:
        return f"{self.topology.trajectories.name}-copy"

    @property
    def columns(self) -> str:
        return f"{self.topology.columns.name}-copy"

    async def begin(self, bus: Bus) -> None:
        """Before anything is written: what is trimmed before it was copied is gone."""
        await declare_job(bus, self.topology, deadline_s=_DEADLINE_S)
        for copy, origin in self._pairs():
            config = {
                "name": copy,
                "mirror": {"name": origin},
                "storage": "file",
                "num_replicas": self.topology.replicas,
            }
            await api_call(bus, f"STREAM.CREATE.{copy}", config, deadline_s=_DEADLINE_S)

    async def catch_up(self, bus: Bus) -> None:
        """Wait until they hold every message that the originals have ever had."""
        for copy, origin in self._pairs():
            last = int((await _state(bus, origin))["last_seq"])

            async def whole(copy: str = copy, last: int = last) -> bool:
                state = await _state(bus, copy)
                return bool(state["messages"] == state["last_seq"] >= last)

            await eventually(whole, timeout_s=_DEADLINE_S)

    def _pairs(self) -> tuple[tuple[str, str], ...]:
        always = (self.ledger, self.topology.ledger.name), (self.trajectories, self.topology.trajectories.name)
        return (*always, (self.columns, self.topology.columns.name)) if self.topology.stages else always


async def _state(bus: Bus, stream: str) -> Json:
    state: Json = (await api_call(bus, f"STREAM.INFO.{stream}", deadline_s=_DEADLINE_S))["state"]
    return state
