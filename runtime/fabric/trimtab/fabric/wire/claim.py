"""The claim check of a payload too large for the stream: it waits in object storage, and this travels in its place."""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.values import Count, Digest, Token


class ClaimCheck(Message, frozen=True, kw_only=True):
    """Where a trajectory's frame lies. The digest is of the frame, checked by whoever fetches it."""

    KIND: ClassVar[int] = 3
    MAX_BYTES: ClassVar[int] = 1 << 14

    trajectory_id: Token
    object_key: Annotated[str, Meta(min_length=1, max_length=1024)]
    size_bytes: Count
    digest: Digest
