"""Leases for very many ranks: groups and rows are encoded once, and every lease is put together from these pieces.

What comes out is a BatchLease like any other. `envelope.encode` would write and read every group once for each rank
that holds a row of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from trimtab.fabric.wire.envelope import framed
from trimtab.fabric.wire.lease import BatchLease, Group, SampleReference

_encoder = msgspec.msgpack.Encoder()


def packed(part: Group | SampleReference) -> msgspec.Raw:
    """A piece of a lease. Made of what was read from headers: those were checked when they came."""
    return msgspec.Raw(_encoder.encode(part))


def encode_packed(terms: BatchLease, *, groups: Sequence[msgspec.Raw], samples: Sequence[msgspec.Raw]) -> bytes:
    """The lease that `terms` is without rows, with these."""
    fields = msgspec.structs.asdict(terms) | {"groups": groups, "samples": samples}
    newer = fields.pop("newer")  # on the wire it is part of its struct's own map
    return framed(BatchLease, _encoder.encode(fields | newer))
