"""What a job's streams may take: what its manifest says, then what the operator is set up with, then what its account
may store. An eighth of an account is for the ledger and the buckets alone: they have room when all else is full.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from trimtab.api.streams import Streams
from trimtab.fabric.bus.stream_limits import ANYWHERE, Placement, StreamLimits

_LEDGER_SHARE = 8
_LEAST_BYTES = 16 << 20


class StreamDefaults(BaseModel):
    """For jobs that do not say it themselves."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    replicas: Literal[1, 3, 5] = 1
    max_bytes: int | None = Field(default=None, ge=_LEAST_BYTES)
    """Of tasks, trajectories and columns together; absent, what the job's account may store, less an eighth."""
    max_messages: int | None = Field(default=None, ge=1)


def most_bytes(storage_bytes: int, *, replicas: int) -> int:
    """Of what an account may store, for all but its ledger and buckets, in one replica."""
    return (storage_bytes - storage_bytes // _LEDGER_SHARE) // replicas


def stream_limits(streams: Streams, defaults: StreamDefaults, *, storage_bytes: int | None) -> StreamLimits:
    """`storage_bytes` is what the job's account may store; None where jobs have no accounts."""
    replicas = streams.replicas or defaults.replicas
    bytes_ = streams.max_bytes or defaults.max_bytes
    if storage_bytes is not None:
        most = most_bytes(storage_bytes, replicas=replicas)
        bytes_ = most if bytes_ is None else min(bytes_, most)
    placement = streams.placement
    return StreamLimits(
        replicas=replicas,
        placement=ANYWHERE if placement is None else Placement(cluster=placement.cluster, tags=placement.tags),
        max_bytes=bytes_,
        max_messages=streams.max_messages or defaults.max_messages,
    )


def limits_refusal(streams: Streams, defaults: StreamDefaults, *, storage_bytes: int | None) -> str | None:
    """Why the manifest asks for more than the job's account may store, with the fix; None when it does not."""
    if storage_bytes is None or streams.max_bytes is None:
        return None
    replicas = streams.replicas or defaults.replicas
    most = most_bytes(storage_bytes, replicas=replicas)
    if streams.max_bytes <= most:
        return None
    return (
        f"spec.streams.maxBytes: {streams.max_bytes} is more than the {most} bytes that the job's NATS account may"
        f" store beside its ledger, with {replicas} replicas; lower it, or have what a job may store raised"
    )
