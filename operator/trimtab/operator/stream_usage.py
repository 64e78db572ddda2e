"""How full a job's streams and its account are, as the server counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trimtab.fabric.bus.connection import Bus
from trimtab.fabric.bus.jetstream_api import api_call
from trimtab.fabric.bus.topology import JobTopology
from trimtab.operator.plan.room import Filling

_RAISE = "raise spec.streams.maxBytes or maxMessages"


@dataclass(frozen=True, kw_only=True)
class Usage:
    fillings: tuple[Filling, ...]
    """Of what has a limit."""
    replicas: int
    """Of the ledger or the trajectories, whichever has fewer."""


async def usage_of(bus: Bus, topology: JobTopology, *, deadline_s: float) -> Usage:
    """Raises BusError when the server does not say."""
    infos = {
        spec.name: await api_call(bus, f"STREAM.INFO.{spec.name}", deadline_s=deadline_s) for spec in topology.streams
    }
    fillings = [one for name, info in infos.items() for one in stream_fillings(name, info)]
    fillings += account_fillings(await api_call(bus, "INFO", deadline_s=deadline_s))
    kept = (topology.ledger.name, topology.trajectories.name)
    return Usage(fillings=tuple(fillings), replicas=min(infos[name]["config"]["num_replicas"] for name in kept))


def stream_fillings(name: str, info: dict[str, Any]) -> list[Filling]:
    config, state = info["config"], info["state"]
    limits = ((config["max_bytes"], state["bytes"]), (config["max_msgs"], state["messages"]))
    return [
        Filling(what=f"stream {name}", reason="StreamFull", used=used, limit=limit, fix=_RAISE)
        for limit, used in limits
        if limit > 0
    ]


def account_fillings(info: dict[str, Any]) -> list[Filling]:
    limit = info["limits"]["max_storage"]
    if limit <= 0:
        return []

    return [
        Filling(
            what="the job's NATS account",
            reason="AccountFull",
            used=info["storage"],
            limit=limit,
            fix="raise what a job may store (nats_accounts.limits.storage_bytes, the chart's jobStorage)",
        )
    ]
