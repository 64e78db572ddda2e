"""How a trainer goes on whose newest checkpoint and the dataflow's ledger do not meet, because one of them has lost its
end: it shows what it has signed.

    CheckpointProof -> LedgerAnchored | LeaseRefused
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.lease import WorldSize
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Index, Name


class CheckpointProof(Message, frozen=True, kw_only=True):
    """A trainer resumes at this step, and its storage has nothing newer."""

    KIND: ClassVar[int] = 18
    MAX_BYTES: ClassVar[int] = 2 << 20

    job: Name
    policy: Name
    step: Count
    """Steps in its weights."""
    attempt: Index = 0
    world_size: WorldSize
    sealed: Annotated[bytes, Meta(max_length=1 << 20)]
    """The pointer to its checkpoints as it signed it."""


class LedgerAnchored(Message, frozen=True, kw_only=True):
    """The ledger goes on with this step. Repeating the proof is harmless and answered the same way."""

    KIND: ClassVar[int] = 19
    MAX_BYTES: ClassVar[int] = 1 << 14

    policy: Name
    step: Count
