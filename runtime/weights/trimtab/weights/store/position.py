"""Where a state of the weights stands: the epoch of the trainer that published it, and its version in that epoch."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from trimtab.fabric.wire.values import Version

Sha256 = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
BlockDigest = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]
"""XXH3-128 of a block's content, in hex."""


class Position(msgspec.Struct, frozen=True, order=True, forbid_unknown_fields=True):
    """Ordered by epoch first. A delta always leads to a later position than the one it begins at."""

    epoch: Version
    version: Version

    def __str__(self) -> str:
        return f"version {self.version} of epoch {self.epoch}"
