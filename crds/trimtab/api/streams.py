"""What a job's streams on NATS may take, and on how many servers they are kept."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from trimtab.api.model import ApiModel
from trimtab.api.rules import ListSet, Rule
from trimtab.api.scalars import PositiveCount

_MIB = 1 << 20
_Name = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\s]+$")]


class StreamPlacement(ApiModel):
    """Which NATS servers the streams may be on."""

    rules = (Rule("has(self.cluster) || size(self.tags) > 0", "streams.placement must name a cluster or tags"),)

    cluster: _Name | None = None
    """Name of the NATS cluster; absent, any."""
    tags: Annotated[tuple[_Name, ...], ListSet(), Field(max_length=16)] = ()
    """Tags that a server must have, all of them."""


class Streams(ApiModel):
    """The job's streams and buckets on NATS. What is absent is as the operator is set up. Values that an administrator
    raised on a stream by hand stay."""

    replicas: Literal[1, 3, 5] | None = None
    """NATS servers on which everything is kept. With 3, one of them may be lost with its disk. A server that is no
    cluster takes 1 only."""
    placement: StreamPlacement | None = None
    """Which servers those may be; absent, any."""
    max_bytes: Annotated[int, Field(ge=16 * _MIB, le=1 << 50)] | None = None
    """Bytes that tasks, trajectories and columns together may take, in one replica; the server sets them aside. The
    ledger is not among them, so that it has room when these are full. Absent, and without a default of the operator,
    what the account may store, less an eighth for the ledger; without accounts, what the server has."""
    max_messages: PositiveCount | None = None
    """Trajectories, and as many columns, that may wait at once; absent, any number."""
