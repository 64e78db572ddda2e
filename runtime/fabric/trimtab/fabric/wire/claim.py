"""The claim check of a row or a column too large for its stream: it waits in object storage, and this travels in its
place.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from msgspec import Meta

from trimtab.fabric.wire.column import Column
from trimtab.fabric.wire.message import Message
from trimtab.fabric.wire.trajectory import Trajectory
from trimtab.fabric.wire.values import Name, Token


class ClaimCheck(Message, frozen=True, kw_only=True):
    """Says what a frame is, and by that where it lies: objects are named after their digests, so that nobody can send a
    reader to another one.
    """

    KIND: ClassVar[int] = 3
    MAX_BYTES: ClassVar[int] = 1 << 14

    trajectory_id: Token
    """Of the row; of a column, the id of its stage's task."""
    policy: Name
    """Whose rows these are, or are computed of: each policy's lie apart."""
    size_bytes: Annotated[int, Meta(ge=1, le=max(Trajectory.MAX_BYTES, Column.MAX_BYTES) + 1024)]
    """Of the frame, which is a little more than its body."""
    sha256: Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
    """Of the frame, checked by whoever fetches it."""

    @property
    def object_key(self) -> str:
        return f"{claims_of(self.policy)}{self.sha256}"


def claims_of(policy: str) -> str:
    """Where the frames of a policy's rows and their columns lie."""
    return f"claims/{policy}/"
