"""How much of a NATS server one job may take: part of its accounts, and held by the server."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

_GIB = 1 << 30
_MIB = 1 << 20


class AccountLimits(BaseModel):
    """A server that is no cluster sets aside what each account may store: the sum over all jobs has to fit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    storage_bytes: int = Field(default=10 * _GIB, ge=256 * _MIB)
    """On disk, of all streams of a job together; two buckets have 3 MiB of it set aside."""
    memory_bytes: int = Field(default=8 * _MIB, ge=_MIB)
    """In memory, where the turns at swapping weights are."""
    streams: int = Field(default=16, ge=9)
    consumers: int = Field(default=256, ge=8)
    connections: int = Field(default=10_000, ge=1)
    """Of pods of one role."""
    subscriptions: int = Field(default=200_000, ge=16)
    """Of all pods of one role together."""
    payload_bytes: int | None = Field(default=None, ge=_MIB)
    """Of one message; absent, what the server takes."""
